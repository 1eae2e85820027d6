import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { createSocketGroup } from './socket-group.ts';

test('a client of a destroyed group sees a reset, not an orderly end', async () => {
  const group = createSocketGroup();
  const accepted = Promise.withResolvers<Socket>();
  await using server = createServer((socket) => {
    group.add(socket);
    accepted.resolve(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  const client = connect(address.port, '127.0.0.1');
  const ended = once(client, 'error');
  const socket = await accepted.promise;
  expect(group.size).toBe(1);
  group.destroy();
  expect(await ended).toMatchObject([{ code: 'ECONNRESET' }]);
  expect(group.size).toBe(0);
  expect(socket.destroyed).toBe(true);
});

test('a socket that closes by itself leaves the group, one that cannot be reset is destroyed', () => {
  const group = createSocketGroup();
  const listeners: (() => void)[] = [];
  let destroyed = 0;
  const member = {
    destroy: () => destroyed++,
    once: (_event: 'close', listener: () => void) => listeners.push(listener),
  };
  group.add(member);
  for (const listener of listeners) listener();
  expect(group.size).toBe(0);
  group.add(member);
  group.destroy();
  group.destroy();
  expect(destroyed).toBe(1);
  group.add(member);
  expect(destroyed).toBe(2);
  expect(group.size).toBe(0);
});
