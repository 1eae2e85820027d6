import type { IncomingMessage, ServerResponse } from 'node:http';
import type { SandboxRecord } from '@agentenv/core';
import { ENVD_PORT, HEADERS } from '@agentenv/protocol';
import type { HttpMetrics, RouteSource } from '../observability/metrics.ts';
import type { DataPlaneTarget, Orchestrator, SocketGroup } from '../orchestrator/orchestrator.ts';
import { equalsSecret } from '../secrets/equality.ts';
import { answerTo, type DataPlaneProblem, writeAnswer } from './answers.ts';
import { createRouting, type Routing } from './routing.ts';

export interface DataPlaneDependencies {
  readonly orchestrator: Pick<Orchestrator, 'target' | 'findByAccessToken' | 'accessToken' | 'trafficAccessToken'>;
  /** Domains whose names `{port}-{sandboxID}.{domain}` lead to sandboxes. */
  readonly domains: readonly string[];
  readonly metrics: HttpMetrics;
}

/** Paths of port 49983 that the platform keeps to itself (contract e2b.md section 7). */
const RESERVED_PATHS = new Set(['/init', '/freeze', '/unfreeze', '/collapse', '/fsfreeze', '/fsthaw', '/upgrade']);

const MAX_LISTENERS = 32;

type SandboxRouting = Extract<Routing, { kind: 'sandbox' }>;
type ReadyTarget = Extract<DataPlaneTarget, { kind: 'ready' }>;

/** Takes a request if it is for a sandbox; false leaves it to the control plane. */
export type DataPlane = (request: IncomingMessage, response: ServerResponse) => boolean;

export function createDataPlane({ orchestrator, domains, metrics }: DataPlaneDependencies): DataPlane {
  const route = createRouting(domains);

  /** What stands between the request and the sandbox, or the sandbox. */
  const admit = (request: IncomingMessage, routing: SandboxRouting): DataPlaneProblem | ReadyTarget => {
    const target = orchestrator.target(routing.sandboxId);
    if (target.kind !== 'ready') return target;
    if (!isAuthorized(request, routing, target.record)) return { kind: 'unauthorized' };
    if (routing.port !== ENVD_PORT) return { kind: 'ingress-not-built', port: routing.port };
    if (isReserved(routing.url)) return { kind: 'reserved-path' };
    return target;
  };

  /** envd checks its own token for E2B clients, which may also sign URLs; the other family has the rule of 15.2. */
  const isAuthorized = (request: IncomingMessage, { family, port }: SandboxRouting, record: SandboxRecord): boolean => {
    if (port === ENVD_PORT) {
      const token = orchestrator.accessToken(record);
      return family === 'e2b' || token === undefined || equalsSecret(request.headers[HEADERS.accessToken], token);
    }
    if (record.network.allowPublicTraffic) return true;
    const token = orchestrator.trafficAccessToken(record);
    return token !== undefined && equalsSecret(request.headers[HEADERS.trafficAccessToken], token);
  };

  return (request, response) => {
    const routing = resolveToken(orchestrator, route(request));
    if (routing.kind === 'control-plane') return false;
    measure(request, response, routing.source, metrics);
    if (routing.kind === 'bad') {
      writeAnswer(response, answerTo({ kind: 'bad-routing', reason: routing.reason }, routing.family, ''));
      return true;
    }
    const admitted = admit(request, routing);
    if (admitted.kind !== 'ready') {
      writeAnswer(response, answerTo(admitted, routing.family, routing.sandboxId));
      return true;
    }
    request.url = routing.url;
    // This, the sandbox's group and every stage of the guest API's pipelines watch for the end of the answer.
    response.setMaxListeners(MAX_LISTENERS);
    join(admitted.sockets, request, response);
    admitted.envd.handle(request, response);
    return true;
  };
}

/** A token nobody has is that of a sandbox that is gone. */
function resolveToken(
  orchestrator: Pick<Orchestrator, 'findByAccessToken'>,
  routing: Routing,
): Exclude<Routing, { kind: 'token' }> {
  if (routing.kind !== 'token') return routing;
  const sandboxId = orchestrator.findByAccessToken(routing.token) ?? '';
  return { kind: 'sandbox', family: 'e2b', source: 'proxy_header', sandboxId, port: ENVD_PORT, url: routing.url };
}

/**
 * Lets the end of the sandbox reset the connection, for as long as this exchange lasts: a client may use the same
 * connection for other sandboxes and for the control plane. A reset and not an orderly end tells clients that the
 * answer is not complete (contract e2b.md T48).
 */
function join(group: SocketGroup, request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request;
  group.add({
    destroy: () => {
      socket.resetAndDestroy();
    },
    once: (event, listener) => response.once(event, listener),
  });
}

function measure(request: IncomingMessage, response: ServerResponse, source: RouteSource, metrics: HttpMetrics): void {
  const start = performance.now();
  response.once('close', () => {
    metrics.observe(request.method ?? '', 'sandbox', source, response.statusCode, (performance.now() - start) / 1000);
  });
}

function isReserved(url: string): boolean {
  const path = url.split('?', 1)[0] ?? '';
  return RESERVED_PATHS.has(`/${path.split('/').filter(Boolean).join('/')}`);
}
