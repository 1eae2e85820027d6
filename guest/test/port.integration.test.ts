import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import type { Agent } from '@agentenv/agent';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';
import { finish, sh, start } from './support/shell.ts';

let guest: SanitizedGuest;
let agent: Agent;
beforeAll(async () => {
  guest = await startSanitizedGuest();
  agent = await guest.connect();
});
afterAll(async () => {
  await agent?.[Symbol.asyncDispose]();
  await guest.stop();
});

/** A TCP server in the guest: answers everything it read, in upper case, when the client has finished. */
async function upperServer(address: string, port: number): Promise<AsyncDisposable> {
  const script = `
import socket, threading
server = socket.socket(socket.AF_INET6 if ':' in '${address}' else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('${address}', ${port})); server.listen(50); print('ready', flush=True)
def serve(s):
    data = b''
    while True:
        part = s.recv(65536)
        if not part: break
        data += part
    s.sendall(data.upper()); s.close()
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()`;
  const server = await start(agent, ['python3', '-c', script]);
  const ready = Promise.withResolvers<void>();
  server.onOutput(({ data }) =>
    String(Buffer.from(data)) === 'ready\n' ? ready.resolve() : ready.reject(new Error(`${data}`)),
  );
  await ready.promise;
  return {
    async [Symbol.asyncDispose]() {
      // The connection it was started on may be gone by now; then it ends with the guest.
      await server.signal(9).catch(() => {});
      await server.exit.catch(() => {});
    },
  };
}

async function exchange(connection: Duplex, text: string): Promise<string> {
  const chunks: Buffer[] = [];
  connection.on('data', (chunk: Buffer) => chunks.push(chunk));
  connection.end(text);
  await once(connection, 'end');
  return Buffer.concat(chunks).toString();
}

describe('connect-port', () => {
  test('finds what listens on either loopback, and half-close works', async () => {
    await using _four = await upperServer('127.0.0.1', 7001);
    await using _six = await upperServer('::1', 7002);
    for (const port of [7001, 7002]) expect(await exchange(await agent.connectPort(port), 'hello')).toBe('HELLO');
  });

  test('carries megabytes both ways on many connections at once', { timeout: 60_000 }, async () => {
    await using _server = await upperServer('127.0.0.1', 7003);
    const text = 'a'.repeat(500_000);
    const answers = await Promise.all(
      Array.from({ length: 20 }, async () => exchange(await agent.connectPort(7003), text)),
    );
    expect(answers.every((answer) => answer === text.toUpperCase())).toBe(true);
  });

  test('refuses a port nobody listens on, and port 0', async () => {
    await expect(agent.connectPort(7999)).rejects.toMatchObject({ details: { status: 'REFUSED' } });
    await expect(agent.connectPort(0)).rejects.toMatchObject({ details: { status: 'INVALID' } });
  });

  test('hands a reset of the peer on, and the host resets when it gives up', async () => {
    const script = `
import socket, struct
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 7004)); server.listen(); print('ready', flush=True)
s, _ = server.accept(); s.sendall(b'x'); s.recv(1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()
s, _ = server.accept()
try:
    while s.recv(65536): pass
    print('ended')
except ConnectionResetError: print('reset')`;
    const server = await start(agent, ['python3', '-c', script]);
    let output = '';
    server.onOutput(({ data }) => {
      output += Buffer.from(data).toString();
    });
    await expect.poll(() => output).toContain('ready');
    const first = await agent.connectPort(7004);
    const failure = new Promise((resolve) => first.once('error', resolve));
    first.on('data', () => first.write('y'));
    expect(await failure).toBeInstanceOf(Error);
    const second = await agent.connectPort(7004);
    second.destroy();
    await server.exit;
    await server.outputEnd;
    expect(output).toContain('reset');
  });
});

describe('listen-port', () => {
  test('hands on connections to both loopbacks until it is disposed', async () => {
    const listening = await agent.listenPort(7010, (connection) => {
      let text = '';
      connection.on('data', (chunk: Buffer) => {
        text += chunk.toString();
      });
      connection.once('end', () => connection.end(`got ${text}`));
    });
    const client = (address: string): string =>
      `python3 -c "import socket; s=socket.create_connection(('${address}',7010)); s.sendall(b'hi'); s.shutdown(1); print(s.recv(99).decode())"`;
    expect((await sh(agent, client('127.0.0.1'))).stdout).toBe('got hi\n');
    expect((await sh(agent, client('::1'))).stdout).toBe('got hi\n');
    await expect(agent.listenPort(7010, () => {})).rejects.toMatchObject({ details: { status: 'EXISTS' } });
    await listening[Symbol.asyncDispose]();
    await expect.poll(async () => (await sh(agent, `${client('127.0.0.1')} 2>&1`)).code).not.toBe(0);
  });
});

describe('a new connection to the agent', () => {
  test('ends port connections with a reset and listeners silently', async () => {
    await using _server = await upperServer('127.0.0.1', 7005);
    const accepted = Promise.withResolvers<void>();
    await agent.listenPort(7011, (incoming) => {
      incoming.on('error', () => {});
      accepted.resolve();
    });
    const connection = await agent.connectPort(7005);
    connection.on('error', () => {});
    connection.write('something');
    const peer = await start(agent, [
      ...['python3', '-c'],
      "import socket; s=socket.create_connection(('127.0.0.1',7011)); print('connected', flush=True)\ntry: print(s.recv(1))\nexcept ConnectionResetError: print('reset')",
    ]);
    await accepted.promise;
    await agent[Symbol.asyncDispose]();
    agent = await guest.connect();
    const found = (await agent.listProcesses()).find(({ id }) => id === peer.id);
    if (found === undefined) throw new Error('the peer is gone');
    expect((await finish(found)).stdout).toMatch(/reset/);
    await (await agent.listenPort(7011, () => {}))[Symbol.asyncDispose]();
  });
});
