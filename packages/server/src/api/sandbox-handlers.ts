import { type CaptureKind, MINIMUM_REFRESH_SECONDS, type SandboxRecord } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import { errorBody } from './errors.ts';
import type { Handlers } from './operations.ts';
import { nextPageHeader } from './pages.ts';
import { type AnswerContext, toListedSandbox, toSandbox, toSandboxDetail } from './sandbox-replies.ts';
import {
  checkTimeout,
  limitParams,
  type TimeoutRules,
  toCreateSandbox,
  toCreateSandboxV2,
  toEgressRules,
  toListFilter,
  toRunningFilter,
} from './sandbox-requests.ts';

type SandboxHandlers = Pick<
  Handlers,
  | 'createSandbox'
  | 'createSandboxV2'
  | 'listRunningSandboxes'
  | 'listSandboxes'
  | 'getSandbox'
  | 'deleteSandbox'
  | 'pauseSandbox'
  | 'resumeSandbox'
  | 'forkSandbox'
  | 'connectSandbox'
  | 'connectSandboxV2'
  | 'setSandboxTimeout'
  | 'refreshSandbox'
  | 'getCustomExtensionParams'
  | 'updateCustomExtensionParams'
  | 'updateSandboxNetwork'
>;

export interface SandboxHandlerDependencies {
  readonly orchestrator: Orchestrator;
  readonly timeouts: TimeoutRules;
  /** First of the configured sandbox domains. */
  readonly domain: string | undefined;
}

/** Handlers of the sandbox routes; v1 and v2 differ in their defaults only. */
export function createSandboxHandlers({ orchestrator, timeouts, domain }: SandboxHandlerDependencies): SandboxHandlers {
  const context: AnswerContext = {
    domain,
    accessToken: oncePerRecord((record) => orchestrator.accessToken(record)),
    trafficAccessToken: oncePerRecord((record) => orchestrator.trafficAccessToken(record)),
  };

  const create = async (request: Parameters<Orchestrator['create']>[0]) => {
    const record = await orchestrator.create(request);
    return {
      status: 201 as const,
      body: toSandbox(record, context),
      headers: { [HEADERS.agentenvSandboxId]: record.id },
    };
  };

  const connect = async (id: string, { timeout, memory }: ConnectBody, defaultSeconds: number) => {
    const seconds = checkTimeout(timeout ?? defaultSeconds, timeouts);
    const { record, resumed } = await orchestrator.connect(id, seconds, kindOf(memory));
    return { status: resumed ? (201 as const) : (200 as const), body: toSandbox(record, context) };
  };

  return {
    createSandbox: ({ body }) => create(toCreateSandbox(body, timeouts)),
    createSandboxV2: ({ body }) => create(toCreateSandboxV2(body, timeouts)),

    pauseSandbox: async ({ path, body }) => {
      await orchestrator.pause(path.sandboxID, kindOf(body.memory));
      return { status: 204 };
    },

    resumeSandbox: async ({ path, body }) => {
      const seconds = checkTimeout(body.timeout ?? timeouts.defaultSeconds, timeouts);
      const record = await orchestrator.resume(path.sandboxID, seconds, kindOf(body.memory));
      return { status: 201, body: toSandbox(record, context) };
    },

    forkSandbox: async ({ path, body }) => {
      const timeoutSeconds = checkTimeout(body.timeout ?? timeouts.defaultSeconds, timeouts);
      const results = await orchestrator.fork(path.sandboxID, { count: body.count ?? 1, timeoutSeconds });
      return {
        status: 201,
        body: results.map((result) =>
          result.kind === 'started'
            ? { sandbox: toSandbox(result.record, context) }
            : { error: errorBody(result.error) },
        ),
      };
    },

    connectSandbox: ({ path, body }) => connect(path.sandboxID, body, timeouts.defaultSeconds),
    connectSandboxV2: ({ path, body }) => connect(path.sandboxID, body, timeouts.defaultV2Seconds),

    listRunningSandboxes: ({ query }) => ({
      status: 200,
      body: orchestrator.list(toRunningFilter(query)).sandboxes.map(toListedSandbox),
    }),

    listSandboxes: ({ query }) => {
      const filter = toListFilter(query);
      const page = orchestrator.list(filter);
      return {
        status: 200,
        body: page.sandboxes.map(toListedSandbox),
        headers: {
          ...nextPageHeader(page.nextToken),
          ...(filter.states.includes('running') ? { [HEADERS.totalRunning]: String(page.totalRunning) } : {}),
        },
      };
    },

    getSandbox: ({ path }) => ({ status: 200, body: toSandboxDetail(orchestrator.get(path.sandboxID), context) }),

    deleteSandbox: async ({ path }) => {
      await orchestrator.kill(path.sandboxID, 'deleted by request');
      return { status: 204 };
    },

    getCustomExtensionParams: ({ path }) => ({
      status: 200,
      body: orchestrator.get(path.sandboxID).customExtensionParams,
    }),

    updateCustomExtensionParams: async ({ path, body }) => ({
      status: 200,
      body: await orchestrator.patchParams(path.sandboxID, limitParams(body)),
    }),

    setSandboxTimeout: async ({ path, body }) => {
      const seconds = checkTimeout(body.timeout ?? timeouts.defaultSeconds, timeouts);
      await orchestrator.setTimeout(path.sandboxID, seconds);
      return { status: 204 };
    },

    refreshSandbox: async ({ path, body }) => {
      const seconds = body.duration ?? timeouts.defaultSeconds;
      await orchestrator.refresh(path.sandboxID, Math.max(MINIMUM_REFRESH_SECONDS, seconds));
      return { status: 204 };
    },

    updateSandboxNetwork: async ({ path, body }) => {
      await orchestrator.updateNetwork(path.sandboxID, toEgressRules(body, ''));
      return { status: 204 };
    },
  };
}

interface ConnectBody {
  readonly timeout?: number | null;
  readonly memory?: boolean | null;
}

function kindOf(memory: boolean | null | undefined): CaptureKind {
  return memory === false ? 'disk' : 'full';
}

/** Records never change, they are replaced; so what is derived from one is derived once and forgotten with it. */
function oncePerRecord(derive: (record: SandboxRecord) => string | undefined): typeof derive {
  const known = new WeakMap<SandboxRecord, { readonly value: string | undefined }>();
  return (record) => {
    let entry = known.get(record);
    if (entry === undefined) {
      entry = { value: derive(record) };
      known.set(record, entry);
    }
    return entry.value;
  };
}
