import { createServer, request as httpRequest, type IncomingHttpHeaders, type OutgoingHttpHeaders } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { dirname } from 'node:path';
import { type NativeGuest, startNativeGuest, testClock } from '@agentenv/agent/testing';
import { SILENT_LOG } from '@agentenv/core';
import { createEnvd, type EnvdOptions, type EnvdService } from '../service.ts';

export const TOKEN = 'an-access-token';

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
}

export interface RequestOptions {
  readonly method?: string;
  readonly headers?: OutgoingHttpHeaders;
  readonly body?: string | Uint8Array | AsyncIterable<Uint8Array>;
  readonly signal?: AbortSignal;
}

/** The service in front of a native guest agent, behind a real HTTP server on loopback. */
export interface EnvdFixture extends AsyncDisposable {
  readonly guest: NativeGuest;
  readonly service: EnvdService;
  /** The directory of this machine that is `/mnt` in the guest. */
  readonly shared: string;
  readonly port: number;
  readonly url: string;
  /** Open sockets of the HTTP server. */
  readonly sockets: ReadonlySet<Socket>;
  /** One request with the token, its answer read to the end. */
  request(path: string, options?: RequestOptions): Promise<Answer>;
}

export async function startEnvd(options: Partial<EnvdOptions> = {}): Promise<EnvdFixture> {
  await using stack = new AsyncDisposableStack();
  const guest = stack.use(await startNativeGuest());
  const service = stack.use(
    createEnvd({
      agent: guest.agent,
      clock: testClock,
      log: SILENT_LOG,
      sandboxId: 'itest',
      templateId: 'base',
      accessToken: TOKEN,
      defaultUser: 'user',
      defaultWorkdir: undefined,
      envVars: {},
      ...options,
    }),
  );
  const server = createServer({ requestTimeout: 0 }, (request, response) => service.handle(request, response));
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  stack.defer(async () => {
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  });
  const { port } = server.address() as AddressInfo;
  const disposal = stack.move();

  return {
    guest,
    service,
    shared: dirname(guest.socketPath),
    port,
    url: `http://127.0.0.1:${port}`,
    sockets,
    request: (path, request) => sendRequest(port, path, request),
    [Symbol.asyncDispose]: () => disposal.disposeAsync(),
  };
}

async function sendRequest(port: number, path: string, options: RequestOptions = {}): Promise<Answer> {
  const { method = 'GET', headers, body, signal } = options;
  return await new Promise((resolve, reject) => {
    const request = httpRequest(
      {
        port,
        host: '127.0.0.1',
        path,
        method,
        agent: false,
        headers: { 'x-access-token': TOKEN, ...headers },
        ...(signal === undefined ? {} : { signal }),
      },
      (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(chunks) }),
        );
      },
    );
    request.on('error', reject);
    if (body === undefined || typeof body === 'string' || body instanceof Uint8Array) request.end(body);
    else void sendBody(request, body).catch(reject);
  });
}

async function sendBody(request: ReturnType<typeof httpRequest>, body: AsyncIterable<Uint8Array>): Promise<void> {
  for await (const chunk of body) {
    if (request.destroyed) return;
    if (!request.write(chunk)) await new Promise<void>((resolve) => request.once('drain', resolve));
  }
  request.end();
}
