import { createHash, randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { GuestProcess } from '../agent.ts';
import { type NativeGuest, startNativeGuest } from '../testing/native-guest.ts';

let guest: NativeGuest;
beforeAll(async () => {
  guest = await startNativeGuest();
});
afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

interface Program {
  readonly process: GuestProcess;
  readonly output: () => string;
}

/** Runs a python program in the guest; resolves when it printed `ready`, or ended. */
async function python(source: string): Promise<Program> {
  const process = await guest.agent.spawn({
    ...{ user: 'user', argv: ['python3', '-u', '-c', source], env: {}, cwd: '', defaultCwd: '', stdin: false },
    ...{ tag: '', config: new Uint8Array(0), killAfterMs: 60_000 },
  });
  let text = '';
  const ready = Promise.withResolvers<void>();
  process.onOutput(({ data }) => {
    text += Buffer.from(data).toString();
    if (text.includes('ready\n')) ready.resolve();
  });
  await Promise.race([ready.promise, process.exit]);
  return { process, output: () => text };
}

const server = (port: number, handle: string): string => `
import socket, hashlib
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', ${port})); s.listen(); print('ready')
c, _ = s.accept()
${handle}
`;

async function readAll(duplex: Duplex): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of duplex.iterator({ destroyOnReturn: false })) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe('connectPort to the native guest', () => {
  it('the host finishes first: the guest still answers', async () => {
    const { process } = await python(server(7001, 'd = b""\nwhile x := c.recv(65536): d += x\nc.sendall(d[::-1])'));
    const connection = await guest.agent.connectPort(7001);
    connection.end('abc');
    expect((await readAll(connection)).toString()).toBe('cba');
    expect(await process.exit).toMatchObject({ code: 0 });
  });

  it('the guest finishes first: the host still sends', async () => {
    const handle = 'c.sendall(b"bye"); c.shutdown(socket.SHUT_WR)\nwhile x := c.recv(65536): print(x.decode())';
    const { process, output } = await python(server(7002, handle));
    const connection = await guest.agent.connectPort(7002);
    expect((await readAll(connection)).toString()).toBe('bye');
    connection.end('still here');
    await process.outputEnd;
    expect(output()).toContain('still here');
  });

  it('carries megabytes both ways at once', async () => {
    const handle = 'while x := c.recv(65536): c.sendall(x)\nc.shutdown(socket.SHUT_WR)';
    await python(server(7003, handle));
    const connection = await guest.agent.connectPort(7003);
    const data = randomBytes(8_000_000);
    const hash = createHash('sha256');
    let received = 0;
    const reading = (async () => {
      for await (const chunk of connection.iterator({ destroyOnReturn: false })) {
        hash.update(chunk);
        received += chunk.length;
      }
    })();
    await pipeline([data], connection, { end: true }).catch(() => {});
    await reading;
    expect(received).toBe(data.length);
    expect(hash.digest('hex')).toBe(createHash('sha256').update(data).digest('hex'));
  });

  it('a reader that stops makes the guest wait, and a destroyed connection resets it', async () => {
    const handle = `
n = 0
try:
  while True: n += c.send(b'x' * 65536)
except OSError as e: print('gone', n)`;
    const { process, output } = await python(server(7004, handle));
    const connection = await guest.agent.connectPort(7004);
    await new Promise((resolve) => connection.once('readable', resolve));
    for (let index = 0; index < 50; index++) await guest.agent.ping();
    expect(connection.readableLength).toBeLessThanOrEqual(300_000);
    connection.destroy();
    await process.outputEnd;
    expect(Number(/gone (\d+)/.exec(output())?.[1])).toBeLessThan(20_000_000);
  });

  it('a port nobody listens on is refused', async () => {
    await expect(guest.agent.connectPort(7999)).rejects.toMatchObject({ details: { status: 'REFUSED' } });
  });
});

describe('listenPort in the native guest', () => {
  it('hands on connections made inside, with half-close, until it is disposed', async () => {
    const listener = await guest.agent.listenPort(49_983, (connection) => {
      readAll(connection).then(
        (request) => connection.end(`got ${request}`),
        () => connection.destroy(),
      );
    });
    const client = (host: string) => `
import socket
s = socket.create_connection(('${host}', 49983)); s.sendall(b'question'); s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode())`;
    for (const host of ['127.0.0.1', '::1']) {
      const { process, output } = await python(client(host));
      await process.outputEnd;
      expect(output()).toContain('got question');
    }
    await expect(guest.agent.listenPort(49_983, () => {})).rejects.toMatchObject({ details: { status: 'EXISTS' } });
    await listener[Symbol.asyncDispose]();
    await guest.agent.ping();
    const { process } = await python(client('127.0.0.1'));
    expect(await process.exit).toMatchObject({ code: 1 });
  });
});
