import { NO_DEADLINE_END_AT, type SandboxRecord, visibleState } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';

type Sandbox = components['schemas']['Sandbox'];
type ListedSandbox = components['schemas']['ListedSandbox'];
type SandboxDetail = components['schemas']['SandboxDetail'];

/** `clientID` of every answer: old clients want one, nobody reads it. */
export const CLIENT_ID = 'agentenv';

/** What is in an answer and not in the record. */
export interface AnswerContext {
  readonly domain: string | undefined;
  accessToken(record: SandboxRecord): string | undefined;
  trafficAccessToken(record: SandboxRecord): string | undefined;
}

/** Answer of create and connect (contract e2b.md section 5). */
export function toSandbox(record: SandboxRecord, context: AnswerContext): Sandbox {
  const token = context.accessToken(record);
  return {
    templateID: record.templateId,
    sandboxID: record.id,
    clientID: CLIENT_ID,
    envdVersion: record.envdVersion,
    ...(record.alias === undefined ? {} : { alias: record.alias }),
    ...(token === undefined ? {} : { envdAccessToken: token }),
    trafficAccessToken: context.trafficAccessToken(record) ?? null,
    ...(context.domain === undefined ? {} : { domain: context.domain }),
  };
}

export function toListedSandbox(record: SandboxRecord): ListedSandbox {
  return {
    templateID: record.templateId,
    sandboxID: record.id,
    clientID: CLIENT_ID,
    ...(record.alias === undefined ? {} : { alias: record.alias }),
    startedAt: new Date(record.startedAt).toISOString(),
    endAt: new Date(record.deadline ?? NO_DEADLINE_END_AT).toISOString(),
    cpuCount: record.resources.vcpus,
    memoryMB: record.resources.memoryMB,
    diskSizeMB: record.resources.diskSizeMB,
    metadata: record.metadata,
    state: visibleState(record.state) ?? 'running',
    envdVersion: record.envdVersion,
  };
}

export function toSandboxDetail(record: SandboxRecord, context: AnswerContext): SandboxDetail {
  const token = context.accessToken(record);
  const { network } = record;
  const { maskRequestHost } = network;
  const hasNetwork =
    !network.allowPublicTraffic ||
    network.allowOut.length > 0 ||
    network.denyOut.length > 0 ||
    maskRequestHost !== undefined;
  return {
    ...toListedSandbox(record),
    ...(token === undefined ? {} : { envdAccessToken: token }),
    ...(context.domain === undefined ? {} : { domain: context.domain }),
    allowInternetAccess: network.allowInternetAccess ?? null,
    ...(hasNetwork
      ? {
          network: {
            allowOut: network.allowOut,
            denyOut: network.denyOut,
            allowPublicTraffic: network.allowPublicTraffic,
            ...(maskRequestHost === undefined ? {} : { maskRequestHost }),
          },
        }
      : {}),
    lifecycle: { onTimeout: record.onTimeout, autoResume: record.autoResume },
  };
}
