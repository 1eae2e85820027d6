import { type Clock, callWithin, type Log, type SandboxRecord } from '@agentenv/core';
import type { EnvdOptions, EnvdService } from '@agentenv/envd';
import type { RunningSandbox, RuntimeEnd } from '@agentenv/runtime';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { OwnerLog } from './owner-log.ts';
import type { SandboxEntry } from './sandbox-table.ts';
import { createSocketGroup } from './socket-group.ts';

export interface AttachmentDependencies {
  readonly createEnvd: (options: EnvdOptions) => EnvdService;
  readonly accessToken: (record: SandboxRecord) => string | undefined;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'journal' | 'agentLost'>;
  readonly samples: Pick<SandboxMetrics, 'attach'>;
  /** Called when a generation is gone without being asked. */
  readonly onRuntimeEnded: (entry: SandboxEntry, end: RuntimeEnd) => void;
}

/** Ties a generation that runs to its sandbox, whether it was just started or adopted. */
export interface Attachment {
  /** Tells of the end of this generation as long as it is the sandbox's; the answer knows whether it has ended. */
  watch(entry: SandboxEntry, running: RunningSandbox): () => RuntimeEnd | undefined;
  /** The guest API of this generation; its end is on what the generation holds. */
  startEnvd(entry: SandboxEntry, running: RunningSandbox): EnvdService;
  /** The data plane reaches it from now on, and it is sampled. */
  publish(entry: SandboxEntry, running: RunningSandbox, envd: EnvdService): void;
}

/** Longest orderly end of a guest API service, milliseconds; the engine must not have to wait for it. */
const ENVD_END_TIMEOUT_MS = 1_000;

export function createAttachment(deps: AttachmentDependencies): Attachment {
  const { clock } = deps;

  function watch(entry: SandboxEntry, running: RunningSandbox): () => RuntimeEnd | undefined {
    let ended: RuntimeEnd | undefined;
    const isCurrent = (): boolean => entry.record.instanceId === running.instanceId && entry.record.state !== 'paused';
    void running.ended.then((end) => {
      ended = end;
      if (isCurrent()) deps.onRuntimeEnded(entry, end);
    });
    void running.agent.closed.then(({ kind }) => {
      if (kind !== 'closed' && isCurrent()) deps.owner.agentLost(entry.record.id, kind);
    });
    return () => ended;
  }

  function startEnvd(entry: SandboxEntry, running: RunningSandbox): EnvdService {
    const { record } = entry;
    const envd = deps.createEnvd({
      agent: running.agent,
      clock,
      log: deps.log,
      journal: deps.owner.journal(record.id),
      sandboxId: record.id,
      templateId: record.templateId,
      accessToken: deps.accessToken(record),
      defaultUser: record.defaultUser,
      defaultWorkdir: record.defaultWorkdir,
      envVars: record.envVars,
    });
    entry.held.push('guest API', async () => {
      try {
        const bounds = { what: 'the guest API', timeoutMs: ENVD_END_TIMEOUT_MS, graceMs: 0 };
        await callWithin(clock, bounds, async () => await envd[Symbol.asyncDispose]());
      } catch (error) {
        // Its sockets are reset and its engine ends next; nothing is left that it could hold.
        deps.log.warn({ sandboxId: record.id, err: error }, 'the guest API did not end in time');
      }
    });
    return envd;
  }

  return {
    watch,
    startEnvd,
    publish(entry, running, envd) {
      const sampling = deps.samples.attach(entry.record.id, running.agent);
      entry.generation = { running, envd, sockets: createSocketGroup(), sampling };
    },
  };
}
