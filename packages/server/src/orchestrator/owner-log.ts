import type { ChannelClosed } from '@agentenv/agent';
import type { CaptureKind, SandboxJournal, SandboxLogEntry, SandboxOperation, SandboxRecord } from '@agentenv/core';
import type { ErrorCode } from '@agentenv/protocol';
import type { SandboxLogs } from '../observability/sandbox-logs.ts';
import type { EndCause } from './ending.ts';

/** Tells the owner of a sandbox what becomes of it, in the log they can read. */
export interface OwnerLog {
  /** For what other parts have to tell about it. */
  journal(id: string): SandboxJournal;
  creating(record: SandboxRecord): void;
  createFailed(id: string, stage: string, code: ErrorCode): void;
  /** `createMs`: from the request to the guest's first answer. */
  ready(id: string, createMs: number): void;
  /** Paused, as a former server left it. */
  found(id: string): void;
  /** Running, as a former server left it. */
  adopted(id: string): void;
  pausing(id: string): void;
  pauseFailed(id: string, stage: string, code: ErrorCode): void;
  paused(id: string, keeps: CaptureKind): void;
  /** It goes on. */
  captured(id: string, operation: 'snapshot' | 'fork'): void;
  captureFailed(id: string, operation: 'snapshot' | 'fork', stage: string, code: ErrorCode): void;
  resuming(id: string, from: CaptureKind): void;
  resumeFailed(id: string, stage: string, code: ErrorCode): void;
  resumed(record: SandboxRecord, resumeMs: number): void;
  agentLost(id: string, kind: ChannelClosed['kind']): void;
  timeoutChanged(record: SandboxRecord, operation: SandboxOperation): void;
  networkChanged(record: SandboxRecord): void;
  /** The former rules stay. */
  networkFailed(id: string): void;
  /** The last entry. What an engine said of its end is for the operator alone. */
  ends(id: string, cause: EndCause): void;
}

export function createOwnerLog(logs: Pick<SandboxLogs, 'open' | 'append' | 'close'>): OwnerLog {
  const tell = (
    id: string,
    level: SandboxLogEntry['level'],
    message: string,
    fields: SandboxLogEntry['fields'] = {},
    logger: SandboxLogEntry['logger'] = 'sandbox',
  ): void => logs.append(id, { level, logger, message, fields });

  return {
    journal: (id) => (entry) => logs.append(id, entry),
    creating({ id, templateId, alias, timeoutSeconds }) {
      logs.open(id);
      const template = alias === undefined ? {} : { template: alias };
      tell(id, 'info', 'sandbox is being created', {
        templateID: templateId,
        ...template,
        timeoutSeconds: String(timeoutSeconds),
      });
    },
    createFailed: (id, stage, code) => tell(id, 'error', 'sandbox could not be created', { stage, code }),
    ready(id, createMs) {
      tell(id, 'info', 'guest agent answers', {}, 'agent');
      tell(id, 'info', 'sandbox is ready', { createMs: String(Math.round(createMs)) });
    },
    found(id) {
      logs.open(id);
      tell(id, 'info', 'sandbox is paused; the server was started again');
    },
    adopted(id) {
      logs.open(id);
      tell(id, 'info', 'sandbox runs on; the server was started again');
    },
    pausing: (id) => tell(id, 'info', 'sandbox is being paused'),
    pauseFailed: (id, stage, code) => tell(id, 'error', 'sandbox could not be paused', { stage, code }),
    paused: (id, keeps) =>
      tell(id, 'info', keeps === 'full' ? 'sandbox is paused' : 'sandbox is paused without memory'),
    captured: (id, operation) => tell(id, 'info', 'sandbox is captured and goes on', { operation }),
    captureFailed: (id, operation, stage, code) =>
      tell(id, 'error', 'sandbox could not be captured', { operation, stage, code }),
    resuming: (id, from) =>
      tell(id, 'info', from === 'full' ? 'sandbox is being resumed' : 'sandbox is being booted from its disk'),
    resumeFailed: (id, stage, code) => tell(id, 'error', 'sandbox could not be resumed', { stage, code }),
    resumed({ id, timeoutSeconds }, resumeMs) {
      const fields = { resumeMs: String(Math.round(resumeMs)), timeoutSeconds: String(timeoutSeconds) };
      tell(id, 'info', 'sandbox is resumed', fields);
    },
    agentLost: (id, kind) => tell(id, 'error', 'guest agent is lost', { kind }, 'agent'),
    timeoutChanged({ id, deadline, timeoutSeconds }, operation) {
      const endAt = deadline === undefined ? {} : { endAt: new Date(deadline).toISOString() };
      tell(id, 'debug', 'timeout changed', { operation, timeoutSeconds: String(timeoutSeconds), ...endAt });
    },
    networkChanged({ id, network: { allowInternetAccess, allowOut, denyOut } }) {
      const rules = { allowOut: String(allowOut.length), denyOut: String(denyOut.length) };
      const access = allowInternetAccess === false ? 'off' : 'on';
      tell(id, 'info', 'network policy replaced', { internetAccess: access, ...rules });
    },
    networkFailed: (id) => tell(id, 'error', 'network policy could not be replaced; the former one stays'),
    ends(id, { event, reason, detail }) {
      if (event === 'kill') tell(id, 'info', 'sandbox ends', { reason, detail });
      else tell(id, 'error', 'sandbox ends', { reason });
      logs.close(id);
    },
  };
}
