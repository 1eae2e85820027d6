import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { dirname } from 'node:path';
import { type NativeGuest, startNativeGuest, testClock } from '@agentenv/agent/testing';
import { SILENT_LOG } from '@agentenv/core';
import { createEnvd, type EnvdOptions, type EnvdService } from '../service.ts';
import { type Answer, type RequestOptions, sendRequest, TOKEN } from './http-client.ts';

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
  /** From here on the HTTP server answers with another service, as of a next generation. */
  serve(service: EnvdService): void;
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
      journal() {},
      sandboxId: 'itest',
      templateId: 'base',
      accessToken: TOKEN,
      defaultUser: 'user',
      defaultWorkdir: undefined,
      envVars: {},
      ...options,
    }),
  );
  let serving = service;
  const server = createServer({ requestTimeout: 0 }, (request, response) => serving.handle(request, response));
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
    serve(next) {
      serving = next;
    },
    request: (path, request) => sendRequest(port, path, request),
    [Symbol.asyncDispose]: () => disposal.disposeAsync(),
  };
}
