import { PlatformError, snapshotId } from '@agentenv/core';
import { createSeededRandom, type LifecycleSubject, runLifecycleModel } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const DIRECTORY = '/home/user/model';
const TIMEOUT_SECONDS = 86_000;
const SIGKILL = 9;

/** The orchestrator on a fake host; guests are looked at from outside. */
function fakeSubject(harness: LifecycleHarness): LifecycleSubject {
  const { orchestrator, snapshots, world, disk } = harness;
  const guest = (id: string) => world.machineOf(id).guest;
  const processOf = (id: string, pid: number) => {
    const found = guest(id).processes.find((process) => process.pid === pid);
    if (found === undefined) throw new Error(`no process ${pid} in ${id}`);
    return found;
  };

  return {
    async create(from) {
      const request = { ...CREATE_BASE, template: from ?? 'base', timeoutSeconds: TIMEOUT_SECONDS };
      const { id } = await orchestrator.create(request);
      if (from === undefined) guest(id).files.makeDir(DIRECTORY, { uid: 1000, gid: 1000, mode: 0o755 });
      return id;
    },
    pause: (id, keeps) => orchestrator.pause(id, keeps),
    async resume(id, from) {
      await orchestrator.resume(id, TIMEOUT_SECONDS, from);
    },
    kill: (id) => orchestrator.kill(id, 'model'),
    snapshot: async (id) => snapshotId(await orchestrator.snapshot(id, undefined), snapshots.namespace),
    async removeSnapshot(name) {
      try {
        await orchestrator.deleteTemplate(name);
        return 'removed';
      } catch (error) {
        if (error instanceof PlatformError && error.code === 'invalid_argument') return 'in-use';
        throw error;
      }
    },
    async fork(id, count) {
      const children = await orchestrator.fork(id, { count, timeoutSeconds: TIMEOUT_SECONDS });
      return children.map((child) => {
        if (child.kind === 'failed') throw child.error;
        return child.record.id;
      });
    },
    async write(id, file, text) {
      const owner = { uid: 1000, gid: 1000, mode: 0o644 };
      guest(id).files.write({ path: `${DIRECTORY}/${file}`, ...owner, content: Buffer.from(text), xattrs: new Map() });
    },
    async remove(id, file) {
      guest(id).files.remove(`${DIRECTORY}/${file}`);
    },
    async files(id) {
      const inside = [...guest(id).files.nodes()].filter(([path]) => path.startsWith(`${DIRECTORY}/`));
      return new Map(
        inside.map(([path, { content }]) => [path.slice(DIRECTORY.length + 1), String(Buffer.from(content))]),
      );
    },
    async spawn(id) {
      const program = { kind: 'sleep', milliseconds: TIMEOUT_SECONDS * 1_000 } as const;
      const process = { uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, program };
      return guest(id).spawn({ ...process, killInMs: undefined }).pid;
    },
    async end(id, pid) {
      const process = processOf(id, pid);
      await process.signal(SIGKILL);
      await process.exit;
    },
    processes: async (id) => guest(id).processes.map(({ pid }) => pid),
    async inspect() {
      const { sandboxes } = orchestrator.list(LIST_ALL);
      const ids = (state: string) => sandboxes.filter((record) => record.state === state).map(({ id }) => id);
      return {
        running: ids('running'),
        paused: ids('paused'),
        engines: [...world.machines.values()].map(({ sandboxId }) => sandboxId),
        records: [...disk.sandboxes.keys()],
        snapshots: snapshots
          .list({ sandboxId: undefined, name: undefined })
          .map((snapshot) => snapshotId(snapshot, snapshots.namespace)),
      };
    },
  };
}

describe('a random life agrees with a model of it, step by step', () => {
  const seeds = Array.from({ length: 20 }, (_, index) => index + 1);
  test.each(seeds)('seed %i, 2000 steps', { timeout: 60_000 }, async (seed) => {
    const harness = await startLifecycle({ seed });
    let last = '';
    try {
      await runLifecycleModel(
        fakeSubject(harness),
        createSeededRandom(seed),
        (what, actual, expected) => expect(actual, what).toEqual(expected),
        {
          steps: 2_000,
          maxSandboxes: 12,
          maxSnapshots: 8,
          onStep(step, what) {
            last = `${step} ${what}`;
          },
        },
      );
    } catch (error) {
      throw new Error(`seed ${seed}, step ${last}`, { cause: error });
    }
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });
});
