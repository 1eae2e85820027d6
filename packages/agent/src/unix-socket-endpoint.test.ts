import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { testClock } from './testing/test-clock.ts';
import { createUnixSocketEndpoint, MAX_SOCKET_PATH } from './unix-socket-endpoint.ts';

async function temporaryDirectory(): Promise<{ readonly path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), 'aenv-endpoint-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

describe('unix socket endpoint', () => {
  it('connects as soon as somebody listens', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'agent.sock');
    const endpoint = createUnixSocketEndpoint(path, { clock: testClock });
    const connecting = endpoint.connect(AbortSignal.timeout(5000));
    const server = createServer((socket) => socket.end('hello'));
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const socket = await connecting;
    const chunks: Buffer[] = [];
    for await (const chunk of socket) chunks.push(chunk);
    expect(Buffer.concat(chunks).toString()).toBe('hello');
    await new Promise((resolve) => server.close(resolve));
  });

  it('gives up with its signal and leaves no timer', async () => {
    const clock = createFakeClock();
    const endpoint = createUnixSocketEndpoint('/nonexistent/agent.sock', { clock });
    const controller = new AbortController();
    const connecting = expect(endpoint.connect(controller.signal)).rejects.toMatchObject({ code: 'canceled' });
    await expect.poll(() => clock.pendingTimers).toBe(1);
    controller.abort();
    await connecting;
    expect(clock.pendingTimers).toBe(0);
    await expect(endpoint.connect(AbortSignal.abort())).rejects.toMatchObject({ code: 'canceled' });
  });

  it('refuses a path the kernel would cut', () => {
    const longest = `/${'x'.repeat(MAX_SOCKET_PATH - 1)}`;
    expect(() => createUnixSocketEndpoint(longest, { clock: testClock })).not.toThrow();
    expect(() => createUnixSocketEndpoint(`${longest}é`, { clock: testClock })).toThrow('109 bytes');
  });
});
