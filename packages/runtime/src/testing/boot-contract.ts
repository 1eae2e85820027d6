import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@agentenv/core';
import { describe, expect, test, vi } from 'vitest';
import type { RunningSandbox, StoredSnapshot } from '../backend.ts';
import { collectOutput, readText, rejection, run, spawn, writeText } from './guest-io.ts';
import type { SuiteContext } from './harness.ts';

/** The part of the contract about `captureDisk` and `boot`. */
export function describeBoots({ get, planFor, live, expectClean }: SuiteContext): void {
  async function restore(plan = planFor(), snapshot = get().template): Promise<RunningSandbox> {
    const sandbox = await get().backend.restore(snapshot, plan);
    live.push(sandbox);
    return sandbox;
  }

  describe('capture without memory, and boot', () => {
    const bootId = async ({ agent }: RunningSandbox): Promise<string> =>
      (await run(agent, ['cat', '/proc/sys/kernel/random/boot_id'])).stdout;

    async function boot(snapshot: StoredSnapshot, plan = planFor()): Promise<RunningSandbox> {
      const sandbox = await get().backend.boot(snapshot, plan);
      live.push(sandbox);
      return sandbox;
    }

    test('leaves the guest held; release lets it go on with its processes', async () => {
      const sandbox = await restore();
      const cat = await spawn(sandbox.agent, ['cat'], true);
      const out = collectOutput(cat);
      const captured = await sandbox.captureDisk(await get().harness.emptyDirectory());
      await rejection(sandbox.agent.ping(AbortSignal.timeout(100)));
      await sandbox.release();
      await captured.release();
      await cat.writeStdin(Buffer.from('later\n'));
      await vi.waitFor(() => expect(out.text()).toBe('later\n'), get().harness.deadlineMs);
    });

    test('a boot finds the files on the disk, no process, and is who its plan says', async () => {
      const source = await restore();
      await writeText(source.agent, '/home/user/state', 'at capture');
      await writeText(source.agent, '/run/in-memory', 'gone', 0);
      await spawn(source.agent, ['sleep', '600']);
      const before = await bootId(source);
      const directory = await get().harness.emptyDirectory();
      const captured = await source.captureDisk(directory);
      const stored: unknown = JSON.parse(await readFile(join(directory, 'manifest.json'), 'utf8'));
      expect(stored).toEqual(captured.manifest);
      expect(captured.manifest).not.toHaveProperty('memory');
      expect(captured.manifest).not.toHaveProperty('vmState');
      await source.stop();
      await captured.release();
      const plan = planFor();
      const booted = await boot({ directory, manifest: captured.manifest }, plan);
      expect(await readText(booted.agent, '/home/user/state')).toBe('at capture');
      expect((await rejection(booted.agent.stat('/run/in-memory'))).code).toBe('not_found');
      expect(await booted.agent.listProcesses()).toEqual([]);
      expect(await bootId(booted)).not.toBe(before);
      expect(await readText(booted.agent, '/run/e2b/.E2B_SANDBOX_ID')).toBe(plan.sandboxId);
      expect((await run(booted.agent, ['hostname'])).stdout.trim()).toBe(plan.hostname);
      expect(Math.abs(await booted.agent.clockSkew())).toBeLessThan(1_000);
    });

    test('over further captures of both kinds it keeps its files, though what it was started on is gone', async () => {
      let sandbox = await restore();
      for (const [cycle, kind] of (['disk', 'full', 'disk', 'disk'] as const).entries()) {
        await writeText(sandbox.agent, `/home/user/cycle-${cycle}`, `written in cycle ${cycle}`);
        const directory = await get().harness.emptyDirectory();
        const captured = kind === 'disk' ? await sandbox.captureDisk(directory) : await sandbox.capture(directory);
        await sandbox.stop();
        await captured.release();
        const snapshot = { directory, manifest: captured.manifest };
        sandbox = kind === 'disk' ? await boot(snapshot) : await restore(planFor(), snapshot);
        await rm(directory, { recursive: true });
      }
      for (let cycle = 0; cycle < 4; cycle++) {
        expect(await readText(sandbox.agent, `/home/user/cycle-${cycle}`)).toBe(`written in cycle ${cycle}`);
      }
    });

    test('a capture with memory can be booted too, also by another engine, and is not changed by that', async () => {
      const source = await restore();
      await writeText(source.agent, '/home/user/state', 'on the disk');
      await run(source.agent, ['sync']);
      const sleeper = await spawn(source.agent, ['sleep', '600']);
      const directory = await get().harness.emptyDirectory();
      const captured = await source.capture(directory);
      await source.stop();
      await captured.release();
      const { manifest } = captured;
      const booted = await boot({ directory, manifest: { ...manifest, fingerprint: { engine: 'other-9.9' } } });
      expect(await readText(booted.agent, '/home/user/state')).toBe('on the disk');
      expect(await booted.agent.listProcesses()).toEqual([]);
      await writeText(booted.agent, '/home/user/state', 'changed');
      const restored = await restore(planFor(), { directory, manifest });
      expect(await readText(restored.agent, '/home/user/state')).toBe('on the disk');
      expect((await restored.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
    });

    test('without memory it is not restored, and one of another backend is not booted: before anything starts', async () => {
      const source = await restore();
      const directory = await get().harness.emptyDirectory();
      const captured = await source.captureDisk(directory);
      await source.stop();
      const { manifest } = captured;
      for (const refused of [
        get().backend.restore({ directory, manifest }, planFor()),
        get().backend.requireRestorable(manifest),
        get().backend.boot({ directory, manifest: { ...manifest, backend: 'somewhere-else' } }, planFor()),
      ]) {
        expect((await rejection(refused)).code).toBe('conflict');
      }
      await expectClean();
    });

    test('an abort on the way leaves the guest running', async () => {
      const sandbox = await restore();
      const controller = new AbortController();
      const pending = sandbox.captureDisk(await get().harness.emptyDirectory(), controller.signal);
      setImmediate(() => controller.abort());
      // A backend may be done before the abort; then the guest is held.
      await pending.then(
        async (captured) => {
          await sandbox.release();
          await captured.release();
        },
        (error: unknown) => expect(PlatformError.fromUnknown(error).code).toBe('canceled'),
      );
      expect((await run(sandbox.agent, ['echo', 'still here'])).stdout).toBe('still here\n');
    });
  });
}
