import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Clock, Log, SandboxRecord } from '@agentenv/core';
import { limitUnreadBody, resetConnection, resetSocket } from '@agentenv/envd';
import { ENVD_PORT, ERROR_CATALOGUE, HEADERS } from '@agentenv/protocol';
import type { HttpMetrics, RouteSource } from '../observability/metrics.ts';
import type { RequestContexts } from '../observability/request-context.ts';
import type { DataPlaneTarget, Orchestrator } from '../orchestrator/orchestrator.ts';
import { equalsSecret } from '../secrets/equality.ts';
import { type Asker, answerTo, type DataPlaneAnswer, type DataPlaneProblem, writeAnswer } from './answers.ts';
import { createAwakening } from './awakening.ts';
import { createExchange, type Forwarding } from './exchange.ts';
import { createGuestConnections } from './guest-connections.ts';
import { createHalfClose } from './half-close.ts';
import { createPeerTrust } from './peer-trust.ts';
import { expectsConsent, hasBody } from './request-head.ts';
import { isReservedPath } from './reserved-paths.ts';
import { createRouting, type Routing } from './routing.ts';
import { createTunnel, type UpgradeRequest, writeRawAnswer } from './tunnel.ts';

/** Limits of the traffic of sandboxes; configuration keys `sandbox_proxy.*`. */
export interface IngressLimits {
  /** Connections from outside one sandbox may have at once. */
  readonly maxConnections: number;
  /** Silence after which an exchange is broken off, milliseconds; 0: never. */
  readonly idleTimeoutMs: number;
  /** Addresses and ranges whose `X-Forwarded-*` headers are believed. */
  readonly trustedProxies: readonly string[];
}

export interface DataPlaneDependencies {
  readonly orchestrator: Pick<
    Orchestrator,
    'target' | 'wake' | 'findByAccessToken' | 'accessToken' | 'trafficAccessToken'
  >;
  /** Domains whose names `{port}-{sandboxID}.{domain}` lead to sandboxes. */
  readonly domains: readonly string[];
  /** The key of the platform, which is never passed on. */
  readonly apiKey: string;
  readonly limits: IngressLimits;
  readonly metrics: HttpMetrics;
  readonly contexts: RequestContexts;
  readonly clock: Clock;
  readonly log: Log;
}

/** The front of every listener: what is for a sandbox is taken here, before the control plane sees it. */
export interface DataPlane {
  /** Takes a request if it is for a sandbox; false leaves it to the control plane. */
  handle(request: IncomingMessage, response: ServerResponse): boolean;
  /** Whether a request to upgrade goes to a service of a sandbox; any other is handled as if it had not asked. */
  takesUpgrade(request: IncomingMessage): boolean;
  /** Takes a connection for whose request `takesUpgrade` said yes, with the bytes that came behind the head. */
  upgrade(request: IncomingMessage, socket: Socket, early: Buffer): void;
  /** Whether an answer goes on although the client has ended its side of this connection. */
  hearsOut(socket: Socket): boolean;
}

/** Statuses of exchanges that had no answer: their client went away, or their sandbox. */
const CLIENT_GONE = ERROR_CATALOGUE.canceled.http;
const SANDBOX_GONE = ERROR_CATALOGUE.sandbox_unavailable.http;

const MAX_LISTENERS = 32;
/** Most headers of a request to a sandbox; their size is limited by the listener. */
const MAX_HEADERS = 500;
/** Silence after which a client that ended its side of the connection counts as gone, milliseconds. */
const HALF_CLOSE_SILENCE_MS = 2_000;

/** What Node writes as the target of a request; the rest could not be told from the end of it. */
const FORWARDABLE = /^[\x21-\xff]+$/;

type SandboxRouting = Extract<Routing, { kind: 'sandbox' }>;
type ReadyTarget = Extract<DataPlaneTarget, { kind: 'ready' }>;
type AdmittedTarget = Extract<DataPlaneTarget, { kind: 'ready' | 'asleep' }>;

/** Where a request goes. */
type Decision =
  | { readonly kind: 'control-plane' }
  | { readonly kind: 'refused'; readonly source: RouteSource; readonly answer: DataPlaneAnswer }
  | Asleep
  | Admitted;

/** It goes to a paused sandbox, which it may resume. */
interface Asleep {
  readonly kind: 'asleep';
  readonly routing: SandboxRouting;
  readonly asker: Asker;
}

interface Admitted {
  readonly kind: 'admitted';
  readonly routing: SandboxRouting;
  readonly target: ReadyTarget;
  readonly asker: Asker;
}

export function createDataPlane(deps: DataPlaneDependencies): DataPlane {
  const { orchestrator, metrics, contexts, clock, log, limits } = deps;
  const route = createRouting(deps.domains);
  const trusts = createPeerTrust(limits.trustedProxies);
  const halfClose = createHalfClose({ clock, silenceMs: HALF_CLOSE_SILENCE_MS });
  const open = createGuestConnections({ clock, log, maxConnections: limits.maxConnections });
  const forwarding = { clock, log, open, idleTimeoutMs: limits.idleTimeoutMs };
  const exchange = createExchange(forwarding);
  const tunnel = createTunnel(forwarding);
  /** Requests to upgrade that were let in, from the question whether they are to their connection. */
  const upgrades = new WeakMap<IncomingMessage, Admitted | Asleep>();

  const awaken = createAwakening({ clock, log, orchestrator });

  const decide = (request: IncomingMessage): Decision => {
    const routing = resolveToken(orchestrator, route(request));
    if (routing.kind === 'control-plane') return routing;
    const { family, source } = routing;
    const asker: Asker = {
      family,
      sandboxId: routing.kind === 'sandbox' ? routing.sandboxId : '',
      accept: request.headers.accept,
    };
    const refused = (problem: DataPlaneProblem): Decision => ({
      kind: 'refused',
      source,
      answer: answerTo(problem, asker),
    });
    if (routing.kind === 'bad') return refused({ kind: 'bad-routing', reason: routing.reason });
    const target = admit(request, routing);
    if (target.kind === 'asleep') return { kind: 'asleep', routing, asker };
    return target.kind === 'ready' ? { kind: 'admitted', routing, target, asker } : refused(target);
  };

  /** What stands between the request and the sandbox, or the sandbox. */
  const admit = (request: IncomingMessage, routing: SandboxRouting): DataPlaneProblem | AdmittedTarget => {
    const target = orchestrator.target(routing.sandboxId);
    if (target.kind !== 'ready' && target.kind !== 'asleep') return target;
    if (target.kind === 'asleep' && !mayAwaken(request, routing, target.record)) return { kind: 'not-awakened' };
    if (!isAuthorized(request, routing, target.record)) return { kind: 'unauthorized' };
    if (routing.port === ENVD_PORT) return isReservedPath(routing.url) ? { kind: 'reserved-path' } : target;
    if (request.rawHeaders.length > 2 * MAX_HEADERS) return { kind: 'too-many-headers' };
    if (!FORWARDABLE.test(routing.url)) return { kind: 'bad-routing', reason: 'failed to construct upstream URI' };
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

  /** A secure sandbox is not awake to check the token of its envd itself, and a signed URL resumes nothing. */
  const mayAwaken = (request: IncomingMessage, { port }: SandboxRouting, record: SandboxRecord): boolean => {
    const token = port === ENVD_PORT ? orchestrator.accessToken(record) : undefined;
    return token === undefined || equalsSecret(request.headers[HEADERS.accessToken], token);
  };

  const forward = ({ routing, target, asker }: Admitted, upgrade: string | undefined): Forwarding => ({
    target,
    asker,
    url: routing.url,
    head: {
      family: routing.family,
      port: routing.port,
      maskRequestHost: target.record.network.maskRequestHost,
      upgrade,
      trusts,
      apiKey: deps.apiKey,
    },
  });

  const measure = (
    request: IncomingMessage,
    ends: { once(event: 'close', listener: () => void): unknown },
    source: RouteSource,
    status: () => number,
  ): void => {
    const start = performance.now();
    ends.once('close', () => {
      const answered = status();
      metrics.observe(request.method ?? '', 'sandbox', source, answered, (performance.now() - start) / 1000);
      if (answered === CLIENT_GONE) log.debug({ ...contexts.of(request), route: source }, 'the client went away');
    });
  };

  /** Answers of our own carry the id of their request; those of services inside are passed on as they are. */
  const nameRequest = (request: IncomingMessage, response: ServerResponse): void => {
    response.setHeader(HEADERS.requestId, contexts.of(request).requestId);
  };

  /** Decides anew once the sandbox is awake: tokens and policy are those of now, and one attempt is all there is. */
  const decideAwake = async (request: IncomingMessage, asleep: Asleep): Promise<Exclude<Decision, Asleep>> => {
    const problem = await awaken(asleep.routing.sandboxId);
    const decision = problem === undefined ? decide(request) : undefined;
    if (decision !== undefined && decision.kind !== 'asleep') return decision;
    const answer = answerTo(problem ?? { kind: 'not-proxyable' }, asleep.asker);
    return { kind: 'refused', source: asleep.routing.source, answer };
  };

  const refuse = (request: IncomingMessage, response: ServerResponse, answer: DataPlaneAnswer): void => {
    nameRequest(request, response);
    limitUnreadBody(request, response, clock);
    writeAnswer(response, answer);
  };

  const serve = (
    request: IncomingMessage,
    response: ServerResponse,
    admitted: Admitted,
    onSandboxGone: () => void,
  ): void => {
    const { routing, target } = admitted;
    // This, the sandbox's group and every stage of the guest API's pipelines watch for the end of the answer.
    response.setMaxListeners(MAX_LISTENERS);
    target.sockets.add({
      destroy: () => {
        onSandboxGone();
        resetConnection(response);
      },
      once: (event, listener) => response.once(event, listener),
    });
    if (routing.port !== ENVD_PORT) {
      exchange(request, response, forward(admitted, undefined));
      return;
    }
    if (expectsConsent(request)) response.writeContinue();
    nameRequest(request, response);
    request.url = routing.url;
    target.envd.handle(request, response);
  };

  const dig = (asked: UpgradeRequest, admitted: Admitted, onAnswer: (status: number) => void): void => {
    const { request, socket } = asked;
    let status: number = CLIENT_GONE;
    admitted.target.sockets.add({
      destroy: () => {
        if (status === CLIENT_GONE) {
          status = SANDBOX_GONE;
          onAnswer(status);
        }
        resetSocket(socket);
      },
      once: (event, listener) => socket.once(event, listener),
    });
    tunnel(asked, forward(admitted, request.headers.upgrade), (answered) => {
      status = answered;
      onAnswer(answered);
    });
  };

  return {
    handle(request, response) {
      const decision = decide(request);
      if (decision.kind === 'control-plane') return false;
      const source = decision.kind === 'refused' ? decision.source : decision.routing.source;
      let sandboxGone = false;
      measure(request, response, source, () => {
        if (response.headersSent) return response.statusCode;
        return sandboxGone ? SANDBOX_GONE : CLIENT_GONE;
      });
      if (decision.kind === 'refused') {
        refuse(request, response, decision.answer);
        return true;
      }
      if (decision.routing.port !== ENVD_PORT && request.httpVersionMajor === 1) {
        halfClose.hearOut(request.socket, response);
      }
      const onSandboxGone = (): void => {
        sandboxGone = true;
      };
      if (decision.kind === 'admitted') {
        serve(request, response, decision, onSandboxGone);
        return true;
      }
      // Its body waits in the connection meanwhile: nobody reads it.
      decideAwake(request, decision)
        .then((awake) => {
          if (response.destroyed) return;
          if (awake.kind === 'admitted') serve(request, response, awake, onSandboxGone);
          else if (awake.kind === 'refused') refuse(request, response, awake.answer);
        })
        .catch((error: unknown) => {
          log.error({ err: error }, 'a request could not be served after its sandbox was resumed');
          resetConnection(response);
        });
      return true;
    },
    takesUpgrade(request) {
      // A body belongs to a request, not to whatever protocol comes behind it.
      if (hasBody(request)) return false;
      const decision = decide(request);
      const isTaken = decision.kind === 'admitted' || decision.kind === 'asleep';
      if (!isTaken || decision.routing.port === ENVD_PORT) return false;
      upgrades.set(request, decision);
      return true;
    },
    upgrade(request, socket, early) {
      const decision = upgrades.get(request);
      if (decision === undefined) {
        socket.destroy();
        return;
      }
      halfClose.letGo(socket);
      let status: number = CLIENT_GONE;
      const onAnswer = (answered: number): void => {
        status = answered;
      };
      measure(request, socket, decision.routing.source, () => status);
      const asked = { request, socket, early };
      if (decision.kind === 'admitted') {
        dig(asked, decision, onAnswer);
        return;
      }
      // Node has let go of the connection; what ends it is told by its end.
      socket.on('error', () => socket.destroy());
      decideAwake(request, decision)
        .then((awake) => {
          if (socket.destroyed) return;
          if (awake.kind === 'admitted') dig(asked, awake, onAnswer);
          else if (awake.kind === 'refused') {
            onAnswer(awake.answer.status);
            writeRawAnswer(socket, awake.answer, clock);
          } else socket.destroy();
        })
        .catch((error: unknown) => {
          log.error({ err: error }, 'an upgrade could not be passed on after its sandbox was resumed');
          resetSocket(socket);
        });
    },
    hearsOut: (socket) => halfClose.hearsOut(socket),
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
