import { createSeededRandom, type LifecycleSubject, runLifecycleModel } from '@agentenv/core/testing';
import { NotFoundError, Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { enginePid, engines, ledgerIds } from './lib/host.ts';
import { NO_POOL, startServer, type TestServer } from './lib/server.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer({ config: NO_POOL });
});
afterAll(async () => {
  await server.stop();
  expect(engines(server)).toEqual([]);
  await server[Symbol.asyncDispose]();
});

const TIMEOUT_MS = 3_600_000;
const DIRECTORY = '/home/user/model';

/** Real microVMs, reached as a client does: through the SDK alone. */
function sdkSubject(): LifecycleSubject {
  const sandboxes = new Map<string, Sandbox>();
  const of = (id: string): Sandbox => {
    const sandbox = sandboxes.get(id);
    if (sandbox === undefined) throw new Error(`no sandbox ${id}`);
    return sandbox;
  };
  const add = (sandbox: Sandbox): string => {
    sandboxes.set(sandbox.sandboxId, sandbox);
    return sandbox.sandboxId;
  };
  const run = async (id: string, command: string): Promise<string> =>
    (await of(id).commands.run(command, { timeoutMs: 0, requestTimeoutMs: 0 })).stdout;
  async function listed(state: 'running' | 'paused'): Promise<string[]> {
    const items = await Sandbox.list({ ...server.sdk, query: { state: [state] } }).nextItems();
    return items.map(({ sandboxId }) => sandboxId);
  }

  return {
    create: async (from) => add(await Sandbox.create(from ?? 'base', { ...server.sdk, timeoutMs: TIMEOUT_MS })),
    async pause(id, keeps) {
      // What a pause with memory leaves on the disk is what was synced.
      await run(id, 'sync');
      await of(id).pause({ keepMemory: keeps === 'full' });
    },
    async resume(id, from) {
      const onResume = from === 'full' ? 'restore' : 'reboot';
      add(await Sandbox.connect(id, { ...server.sdk, timeoutMs: TIMEOUT_MS, onResume }));
    },
    async kill(id) {
      if (!(await Sandbox.kill(id, server.sdk))) throw new Error(`${id} was not there`);
      sandboxes.delete(id);
    },
    snapshot: async (id) => (await of(id).createSnapshot()).snapshotId,
    async removeSnapshot(name) {
      const { status } = await server.api(`/templates/${encodeURIComponent(name)}`, { method: 'DELETE' });
      if (status === 400) return 'in-use';
      if (status !== 204) throw new NotFoundError(`removal of ${name} answered ${status}`);
      return 'removed';
    },
    async fork(id, count) {
      const children = await of(id).fork({ count, timeoutMs: TIMEOUT_MS });
      return children.map((child) => {
        if (child instanceof Error) throw child;
        return add(child);
      });
    },
    async write(id, file, text) {
      await of(id).files.write(`${DIRECTORY}/${file}`, text);
    },
    async remove(id, file) {
      await of(id).files.remove(`${DIRECTORY}/${file}`);
    },
    async files(id) {
      const lines = await run(id, `mkdir -p ${DIRECTORY} && cd ${DIRECTORY} && grep -rH '' . || true`);
      return new Map(
        lines
          .split('\n')
          .filter((line) => line !== '')
          .map((line) => {
            const [path = '', text = ''] = line.split(':');
            return [path.replace('./', ''), text];
          }),
      );
    },
    spawn: async (id) => (await of(id).commands.run('exec sleep infinity', { background: true, timeoutMs: 0 })).pid,
    async end(id, pid) {
      if (!(await of(id).commands.kill(pid))) throw new Error(`no process ${pid} in ${id}`);
    },
    processes: async (id) => (await of(id).commands.list()).map(({ pid }) => pid),
    async inspect() {
      const [running, paused, snapshots] = await Promise.all([
        listed('running'),
        listed('paused'),
        Sandbox.listSnapshots(server.sdk).nextItems(),
      ]);
      const owners = new Map(running.map((id) => [enginePid(server, id), id]));
      return {
        running,
        paused,
        engines: engines(server).map((pid) => owners.get(pid) ?? `engine ${pid}, which no record names`),
        records: ledgerIds(server),
        snapshots: snapshots.map(({ snapshotId }) => snapshotId),
      };
    },
  };
}

describe('a random life agrees with a model of it, step by step', () => {
  it.each([1, 2, 3])('real microVMs, seed %i, 60 steps', { timeout: 600_000 }, async (seed) => {
    const done: string[] = [];
    try {
      await runLifecycleModel(
        sdkSubject(),
        createSeededRandom(seed),
        (what, actual, expected) => expect(actual, what).toEqual(expected),
        { steps: 60, maxSandboxes: 4, maxSnapshots: 3, onStep: (step, what) => done.push(`${step} ${what}`) },
      );
    } catch (error) {
      throw new Error(`seed ${seed}, steps: ${done.join(', ')}`, { cause: error });
    }
  });
});
