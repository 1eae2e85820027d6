import { Sandbox } from 'e2b';
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer();
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  await server[Symbol.asyncDispose]();
});

const stateOf = async (id: string): Promise<string> => (await Sandbox.getInfo(id, server.sdk)).state;

it('a command of the SDK resumes a sandbox its timeout paused, processes and files included', {
  timeout: 120_000,
}, async () => {
  const sandbox = await Sandbox.create({
    ...server.sdk,
    timeoutMs: 20_000,
    lifecycle: { onTimeout: 'pause', autoResume: true },
  });
  const id = sandbox.sandboxId;
  onTestFinished(async () => {
    await Sandbox.kill(id, server.sdk);
  });
  await sandbox.files.write('/tmp/kept', 'as it was');
  const sleeping = await sandbox.commands.run('sleep 600', { background: true });
  await sandbox.setTimeout(1_000);
  await waitUntil(async () => (await stateOf(id)) === 'paused', { timeout: 30_000, what: 'the pause at the timeout' });

  const read = await Promise.all(Array.from({ length: 4 }, () => sandbox.files.read('/tmp/kept')));
  expect(new Set(read)).toEqual(new Set(['as it was']));
  expect((await sandbox.commands.list()).map(({ pid }) => pid)).toContain(sleeping.pid);
});
