import type { GuestProcess } from '@agentenv/agent';
import { type Log, PlatformError } from '@agentenv/core';
import { type ProcessConfig, ProcessConfigSchema, ProcessInfoSchema } from '@agentenv/protocol/process';
import { create, fromJsonString, toJsonString } from '@bufbuild/protobuf';
import type { ProcessDescription } from './process-record.ts';

/** What the guest keeps of a process for us, so that another server can list it as it was started. */
export function encodeDescription({ tag, config }: ProcessDescription): Uint8Array {
  const info = create(ProcessInfoSchema, { config, ...(tag === undefined ? {} : { tag }) });
  return Buffer.from(toJsonString(ProcessInfoSchema, info), 'utf8');
}

/** The reverse. The guest is not trusted: what cannot be read becomes an empty description. */
export function decodeDescription(guest: GuestProcess, log: Log): ProcessDescription {
  try {
    const info = fromJsonString(ProcessInfoSchema, Buffer.from(guest.config).toString('utf8'), {
      ignoreUnknownFields: true,
    });
    return { tag: info.tag, config: info.config ?? emptyConfig() };
  } catch (caught) {
    log.warn({ err: PlatformError.fromUnknown(caught), pid: guest.pid }, 'a process has an unreadable description');
    return { tag: guest.tag === '' ? undefined : guest.tag, config: emptyConfig() };
  }
}

function emptyConfig(): ProcessConfig {
  return create(ProcessConfigSchema);
}
