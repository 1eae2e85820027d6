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

const BOOT_ID = 'cat /proc/sys/kernel/random/boot_id';

/** What a client sees of a guest: who it is by default, where, with which variables, and since which boot. */
const LOOK = `whoami; pwd; echo "$COLOUR $E2B_SANDBOX_ID"; hostname; cat kept`;

async function output(sandbox: Sandbox, command: string): Promise<string> {
  return (await sandbox.commands.run(command)).stdout.trim();
}

it('a sandbox that is paused without memory boots: files, user, directory and variables are there, processes are not', {
  timeout: 240_000,
}, async () => {
  const sandbox = await Sandbox.create({ ...server.sdk, timeoutMs: 600_000, envs: { COLOUR: 'blue' } });
  const id = sandbox.sandboxId;
  onTestFinished(async () => {
    await Sandbox.kill(id, server.sdk);
  });
  await sandbox.files.write('kept', 'as it was');
  const before = await output(sandbox, LOOK);
  expect(before.split('\n')).toEqual(['user', '/home/user', `blue ${id}`, id, 'as it was']);
  const first = await output(sandbox, BOOT_ID);
  await sandbox.commands.run('sleep 600', { background: true });

  expect(await sandbox.pause({ keepMemory: false })).toBe(true);
  expect(await sandbox.pause({ keepMemory: false })).toBe(false);
  expect((await Sandbox.getInfo(id, server.sdk)).state).toBe('paused');
  await Sandbox.connect(id, { ...server.sdk, timeoutMs: 600_000 });
  // By the former handle, with its tokens.
  expect(await output(sandbox, LOOK)).toBe(before);
  expect(await sandbox.commands.list()).toEqual([]);
  const second = await output(sandbox, BOOT_ID);
  expect(second).not.toBe(first);

  // With memory it goes on, and boots all the same when that is asked for.
  await output(sandbox, 'sync');
  const { pid } = await sandbox.commands.run('sleep 600', { background: true });
  await sandbox.pause();
  await Sandbox.connect(id, { ...server.sdk, timeoutMs: 600_000 });
  expect((await sandbox.commands.list()).map((process) => process.pid)).toEqual([pid]);
  expect(await output(sandbox, BOOT_ID)).toBe(second);
  await sandbox.pause();
  await Sandbox.connect(id, { ...server.sdk, timeoutMs: 600_000, onResume: 'reboot' });
  expect(await sandbox.commands.list()).toEqual([]);
  expect(await output(sandbox, BOOT_ID)).not.toBe(second);
  expect(await output(sandbox, LOOK)).toBe(before);
});

it('a timeout pauses without memory where that is asked for, and no request resumes it', {
  timeout: 120_000,
}, async () => {
  const sandbox = await Sandbox.create({
    ...server.sdk,
    timeoutMs: 20_000,
    lifecycle: { onTimeout: { action: 'pause', keepMemory: false } },
  });
  const id = sandbox.sandboxId;
  onTestFinished(async () => {
    await Sandbox.kill(id, server.sdk);
  });
  await sandbox.files.write('kept', 'as it was');
  await sandbox.setTimeout(1_000);
  const paused = async (): Promise<boolean> => (await Sandbox.getInfo(id, server.sdk)).state === 'paused';
  await waitUntil(paused, { timeout: 30_000, what: 'the pause at the timeout' });
  await expect(sandbox.files.read('kept')).rejects.toThrow();
  expect(await paused()).toBe(true);
  await Sandbox.connect(id, server.sdk);
  expect(await sandbox.files.read('kept')).toBe('as it was');
});
