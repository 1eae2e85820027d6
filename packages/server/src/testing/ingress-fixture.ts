import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Agent } from '@agentenv/agent';
import { type NativeGuest, startNativeGuest, testClock } from '@agentenv/agent/testing';
import type { Clock, SandboxId, SandboxRecord } from '@agentenv/core';
import { createRecordingLog, createSeededRandom, sandboxRecord } from '@agentenv/core/testing';
import { createHttpServer } from '../api/http-server.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { createRequestContexts } from '../observability/request-context.ts';
import { createSocketGroup, type OwnedSocketGroup } from '../orchestrator/socket-group.ts';
import { createDataPlane, type IngressLimits } from '../proxy/data-plane.ts';
import { createMemoryOrchestrator, type MemoryOrchestrator } from './memory-orchestrator.ts';

export const SANDBOX_ID = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
export const SANDBOX_DOMAIN = 'sandboxes.test';
export const PLATFORM_KEY = `e2b_${'0a'.repeat(20)}`;

export interface IngressOptions {
  readonly limits?: Partial<IngressLimits>;
  readonly record?: Partial<SandboxRecord>;
  readonly clock?: Clock;
}

/** The data plane with one sandbox behind it: the guest agent as a process of this machine. */
export interface IngressFixture extends AsyncDisposable {
  /** Port of the front on 127.0.0.1. */
  readonly port: number;
  readonly server: Server;
  readonly guest: NativeGuest;
  readonly orchestrator: MemoryOrchestrator;
  readonly metrics: Metrics;
  /** What the data plane logged as a fault; clients and services can cause none. */
  faults(): readonly string[];
  /** What belongs to the present generation of the sandbox. */
  readonly sockets: OwnedSocketGroup;
  /** `{port}-{id}.{domain}` of the sandbox. */
  host(port: number): string;
  /** Starts a generation of the sandbox on `agent`. */
  run(record?: Partial<SandboxRecord>, agent?: Pick<Agent, 'connectPort'>): OwnedSocketGroup;
  /** What a kill does before the engine ends: the sandbox is not found any more, then its connections are reset. */
  kill(): void;
  /** A server of this process behind a port inside the sandbox, reached through the sandbox's loopback. */
  serve(port: number, listener: RequestListener): Promise<Server>;
  /** The same for whatever takes a bare connection. */
  listen(port: number, onConnection: (connection: Duplex) => void): Promise<void>;
  /** Runs a python program in the sandbox; resolves when it prints `ready`, rejects when it ends before. */
  python(source: string): Promise<void>;
  /** A bare connection to the front. */
  connect(): Promise<Socket>;
}

export async function startIngress(options: IngressOptions = {}): Promise<IngressFixture> {
  await using stack = new AsyncDisposableStack();
  const guest = stack.use(await startNativeGuest());
  const orchestrator = createMemoryOrchestrator({ rng: createSeededRandom(1), now: () => Date.now() });
  const metrics = createMetrics();
  const log = createRecordingLog();
  const dataPlane = createDataPlane({
    orchestrator,
    metrics: metrics.http,
    contexts: createRequestContexts(createSeededRandom(2)),
    apiKey: PLATFORM_KEY,
    domains: [SANDBOX_DOMAIN],
    clock: options.clock ?? testClock,
    log,
    limits: { maxConnections: 200, idleTimeoutMs: 0, trustedProxies: [], ...options.limits },
  });
  const server = createHttpServer(dataPlane, (_request, response) => response.end('control plane'), {
    clock: options.clock ?? testClock,
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const clients = new Set<Socket>();
  stack.defer(async () => {
    for (const client of clients) client.destroy();
    server.closeAllConnections();
    sockets.destroy();
    server.close();
    await once(server, 'close');
  });
  const { port } = server.address() as AddressInfo;
  let sockets = createSocketGroup();

  const run: IngressFixture['run'] = (record, agent = guest.agent) => {
    sockets = createSocketGroup();
    const running = sandboxRecord({ id: SANDBOX_ID, secure: false, ...options.record, ...record });
    orchestrator.put(running);
    orchestrator.setTarget(SANDBOX_ID, {
      kind: 'ready',
      record: running,
      agent,
      sockets,
      envd: {
        handle: (request, response) => response.end(`envd ${request.method} ${request.url}`),
        async [Symbol.asyncDispose]() {},
      },
    });
    return sockets;
  };
  const listen: IngressFixture['listen'] = async (inside, onConnection) => {
    await guest.agent.listenPort(inside, onConnection);
  };
  run();
  const everything = stack.move();
  return {
    port,
    server,
    guest,
    orchestrator,
    metrics,
    faults: () => [...log.find('error'), ...log.find('warn')].map(({ message }) => message),
    get sockets() {
      return sockets;
    },
    host: (inside) => `${inside}-${SANDBOX_ID}.${SANDBOX_DOMAIN}`,
    run,
    kill() {
      orchestrator.setTarget(SANDBOX_ID, { kind: 'not-found' });
      sockets.destroy();
    },
    listen,
    async serve(inside, listener) {
      const service = createServer({ requestTimeout: 0, maxHeaderSize: 128 * 1024 }, listener);
      await listen(inside, (connection) => service.emit('connection', connection));
      return service;
    },
    async python(source) {
      const program = await guest.agent.spawn({
        ...{ user: 'user', argv: ['python3', '-u', '-c', source], env: {}, cwd: '', defaultCwd: '', stdin: false },
        ...{ tag: '', config: new Uint8Array(0), killAfterMs: 300_000 },
      });
      let output = '';
      const ready = Promise.withResolvers<void>();
      program.onOutput(({ data }) => {
        output += Buffer.from(data).toString();
        if (output.includes('ready\n')) ready.resolve();
      });
      const ended = (): void => ready.reject(new Error(`the program ended: ${output}`));
      program.outputEnd.then(ended, ended);
      // It ends with the sandbox, and its exit is then not known any more.
      program.exit.catch(() => undefined);
      await ready.promise;
    },
    async connect() {
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
      clients.add(socket);
      socket.on('error', () => {});
      socket.once('close', () => clients.delete(socket));
      await once(socket, 'connect');
      return socket;
    },
    [Symbol.asyncDispose]: () => everything.disposeAsync(),
  };
}
