import { type ExtensionParams, type Log, PlatformError, type SandboxRecord } from '@agentenv/core';
import type { LiveSlot, SlotCalls } from '@agentenv/runtime';
import type { ExtensionClient, StartRequest } from './extension-client.ts';

/**
 * What the custom extension is told of sandboxes, above every backend. Everything it is told comes from the sandbox's
 * record; without an extension nothing is sent.
 */
export interface SandboxHooks {
  readonly enabled: boolean;
  /** Throws `invalid_argument` for parameters that nobody would read. */
  requireReader(params: ExtensionParams | undefined): void;
  /**
   * For the launch of the generation the record names: its start before anything runs, then its stop. The stop is sent
   * after a start that failed or was not answered too; its own failure is only logged.
   */
  callsFor(record: SandboxRecord, start: 'fresh' | 'resume'): SlotCalls;
  /** The new parameters of a running sandbox. */
  patch(record: SandboxRecord, patch: ExtensionParams): Promise<ExtensionParams>;
}

export function createSandboxHooks(deps: {
  /** undefined: no extension. */
  readonly client: ExtensionClient | undefined;
  readonly log: Log;
}): SandboxHooks {
  const { client, log } = deps;

  const missing = (): PlatformError =>
    new PlatformError('invalid_argument', 'customExtensionParams: no custom extension is configured');

  function metadataOf({ metadata }: SandboxRecord): { readonly metadata?: SandboxRecord['metadata'] } {
    return Object.keys(metadata).length === 0 ? {} : { metadata };
  }

  function startRequest(record: SandboxRecord, slot: LiveSlot): StartRequest {
    return {
      sandboxId: record.id,
      sandboxInstanceId: record.instanceId,
      networkNamespacePath: slot.networkNamespacePath,
      hostInteractionIp: slot.hostInteractionIp,
      customExtensionParams: record.customExtensionParams,
      ...metadataOf(record),
    };
  }

  return {
    enabled: client !== undefined,
    requireReader(params) {
      if (client === undefined && params !== undefined && Object.keys(params).length > 0) throw missing();
    },
    callsFor(record, start) {
      if (client === undefined) return {};
      return {
        async beforeStart(slot, signal) {
          const request = startRequest(record, slot);
          if (start === 'resume') {
            await client.startResume(request, signal);
            return {};
          }
          const kernelArguments = await client.startFresh(request, signal);
          return kernelArguments === undefined ? {} : { kernelArguments };
        },
        async afterStop() {
          const { id: sandboxId, instanceId: sandboxInstanceId } = record;
          try {
            await client.stop({ sandboxId, sandboxInstanceId });
          } catch (error) {
            log.warn({ sandboxId, instanceId: sandboxInstanceId, err: error }, 'the custom extension took no stop');
          }
        },
      };
    },
    async patch(record, patch) {
      if (client === undefined) throw missing();
      return await client.patchParams({ sandboxId: record.id, patch, ...metadataOf(record) });
    },
  };
}
