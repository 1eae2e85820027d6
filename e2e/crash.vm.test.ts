import { existsSync, readdirSync } from 'node:fs';
import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { enginePid, engines, ledgerIds } from './lib/host.ts';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer();
});
afterAll(async () => {
  await server.stop();
  expect(engines(server)).toEqual([]);
  await server[Symbol.asyncDispose]();
});

const create = (metadata: Record<string, string> = {}) =>
  Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000, metadata });

const listed = async (): Promise<string[]> =>
  (await Sandbox.list(server.sdk).nextItems()).map(({ sandboxId }) => sandboxId);

describe('twenty at once', () => {
  it('every create answers, each sandbox runs a command of its own, all are gone after kill', {
    timeout: 400_000,
  }, async () => {
    const sandboxes = await Promise.all(Array.from({ length: 20 }, (_, index) => create({ index: String(index) })));
    expect(new Set(sandboxes.map(({ sandboxId }) => sandboxId)).size).toBe(20);
    const outputs = await Promise.all(
      sandboxes.map((sandbox, index) => sandbox.commands.run(`echo ${index} > mine; cat mine`, { timeoutMs: 0 })),
    );
    expect(outputs.map(({ stdout }) => stdout)).toEqual(sandboxes.map((_, index) => `${index}\n`));
    expect(await Promise.all(sandboxes.map((sandbox) => sandbox.kill()))).toEqual(sandboxes.map(() => true));
    expect(await Sandbox.list(server.sdk).nextItems()).toEqual([]);
    expect(ledgerIds(server)).toEqual([]);
  });
});

describe('the end of one machine ends exactly that sandbox', () => {
  interface Ending {
    readonly reason: RegExp;
    readonly end: (sandbox: Sandbox) => Promise<unknown>;
    /** Milliseconds; 2 s for us, and what an emulated guest needs for its own way down. */
    readonly limit: number;
  }
  const endings: Record<string, Ending> = {
    'kill -9 of its engine': {
      limit: 2_000,
      reason: /engine-died/,
      end: async (sandbox) => process.kill(enginePid(server, sandbox.sandboxId), 'SIGKILL'),
    },
    'a kernel panic': {
      limit: 6_000,
      reason: /guest-panic/,
      end: (sandbox) => sandbox.commands.run('echo c > /proc/sysrq-trigger', { user: 'root', background: true }),
    },
    poweroff: {
      limit: 6_000,
      reason: /guest-poweroff/,
      end: (sandbox) => sandbox.commands.run('poweroff', { user: 'root', background: true }),
    },
    reboot: {
      limit: 6_000,
      reason: /guest-reboot/,
      end: (sandbox) => sandbox.commands.run('sudo reboot', { background: true }),
    },
  };

  it.each(Object.entries(endings))('%s', async (_, { reason, end, limit }) => {
    const neighbour = await create();
    const doomed = await create();
    onTestFinished(async () => {
      await neighbour.kill();
      await doomed.kill();
    });
    const pid = enginePid(server, doomed.sandboxId);
    // The client's stream breaks with its machine; that is the point.
    await end(doomed).catch(() => undefined);
    const ended = performance.now();
    await waitUntil(async () => !(await doomed.isRunning()), { timeout: 20_000, what: 'the sandbox to be gone' });
    // Its channel may be gone before its end is known.
    await waitUntil(async () => !(await listed()).includes(doomed.sandboxId), { timeout: 20_000, what: 'the list' });
    expect(await listed()).toContain(neighbour.sandboxId);
    await waitUntil(() => !existsSync(`/proc/${pid}/exe`), { timeout: 5_000, what: 'the engine to be gone' });
    expect(performance.now() - ended).toBeLessThan(limit);
    expect((await neighbour.commands.run('echo alive')).stdout).toBe('alive\n');
    const line = server
      .output()
      .split('\n')
      .find((text) => text.includes(doomed.sandboxId) && reason.test(text));
    expect(line, 'the reason is in the log').toBeDefined();
    await waitUntil(() => !ledgerIds(server).includes(doomed.sandboxId), { timeout: 5_000, what: 'the record to go' });
  });
});

describe('kill -9 of the server', () => {
  it('leaves the sandboxes running and no orphan; the next create works', { timeout: 300_000 }, async () => {
    const survivors = await Promise.all([create(), create()]);
    const ids = survivors.map(({ sandboxId }) => sandboxId).sort();
    const pids = ids.map((id) => enginePid(server, id));
    // One more create is under way when the server dies, or has just been answered.
    const interrupted = create().then(
      ({ sandboxId }) => [sandboxId],
      () => [],
    );
    await waitUntil(() => ledgerIds(server).length === 3, { timeout: 10_000, what: 'the third record' });
    await server.kill9();
    const acknowledged = [...ids, ...(await interrupted)];
    await server.restart();
    const found = await listed();
    // One whose answer was lost may be there as well.
    expect(found).toEqual(expect.arrayContaining(acknowledged));
    expect(found.length).toBeLessThanOrEqual(ids.length + 1);
    expect(ledgerIds(server).sort()).toEqual(found.sort());
    expect(ids.map((id) => enginePid(server, id))).toEqual(pids);
    for (const survivor of survivors) {
      expect((await survivor.commands.run('echo alive')).stdout).toBe('alive\n');
      await survivor.kill();
    }
    for (const id of await listed()) await Sandbox.kill(id, server.sdk);
    const fresh = await create();
    expect((await fresh.commands.run('echo again')).stdout).toBe('again\n');
    await fresh.kill();
  });
});

describe('start and stop', () => {
  it('a second server refuses the home of a running one', async () => {
    await expect(startServer({ home: server.home })).rejects.toThrow(/in use|locked|another server/i);
    expect((await fetch(`${server.url}/health`)).status).toBe(204);
  });

  it('SIGTERM pauses every sandbox, exits 0 and leaves nothing running; the next start goes on with them', {
    timeout: 200_000,
  }, async () => {
    await using own = await startServer();
    const { sandboxId, commands } = await Sandbox.create('base', { ...own.sdk, timeoutMs: 600_000 });
    const { pid } = await commands.run('exec sleep infinity', { background: true, timeoutMs: 0 });
    expect(engines(own).length).toBeGreaterThan(0);
    expect(await own.stop()).toBe(0);
    expect(engines(own)).toEqual([]);
    expect(existsSync(own.runtime) ? readdirSync(own.runtime) : []).toEqual([]);
    expect(ledgerIds(own)).toEqual([sandboxId]);
    await own.restart();
    const same = await Sandbox.connect(sandboxId, own.sdk);
    expect((await same.commands.list()).map((process) => process.pid)).toEqual([pid]);
    await same.kill();
  });
});
