import { access } from 'node:fs/promises';
import { PlatformError } from '@agentenv/core';
import { describe, expect, test, vi } from 'vitest';
import type { LaunchPlan, LiveSlot, RunningSandbox, StartAdvice } from '../backend.ts';
import { readText, rejection } from './guest-io.ts';
import type { SuiteContext } from './harness.ts';

/** The part of the contract about `beforeStart` and `afterStop`. */
export function describeSlotCalls({ get, planFor, live, expectClean }: SuiteContext): void {
  async function restore(plan: LaunchPlan): Promise<RunningSandbox> {
    const sandbox = await get().backend.restore(get().template, plan);
    live.push(sandbox);
    return sandbox;
  }

  describe('calls about the slot', () => {
    interface Told {
      readonly plan: LaunchPlan;
      readonly calls: string[];
      slot: LiveSlot | undefined;
    }

    function planThatTells(answer: (signal: AbortSignal) => Promise<StartAdvice> = async () => ({})): Told {
      const told: Told = {
        calls: [],
        slot: undefined,
        plan: {
          ...planFor(),
          async beforeStart(slot, signal) {
            told.calls.push('before');
            told.slot = slot;
            return await answer(signal);
          },
          async afterStop() {
            told.calls.push('after');
          },
        },
      };
      return told;
    }

    test('one before anything runs, with a namespace that is there, and one when the engine is gone', async () => {
      const told = planThatTells();
      const sandbox = await restore(told.plan);
      expect(told.calls).toEqual(['before']);
      expect(told.slot?.hostInteractionIp).toMatch(/^\d+\.\d+\.\d+\.\d+$/);
      await access(told.slot?.networkNamespacePath ?? '');
      await sandbox.stop();
      expect(told.calls).toEqual(['before', 'after']);
      await sandbox.stop();
      expect(told.calls).toEqual(['before', 'after']);
    });

    test('a start waits for the answer, and a refusal fails it with that error and leaves nothing', async () => {
      const refusal = new PlatformError('conflict', 'not today');
      const told = planThatTells(async () => {
        throw refusal;
      });
      expect(await rejection(get().backend.restore(get().template, told.plan))).toBe(refusal);
      expect(told.calls).toEqual(['before', 'after']);
      await expectClean();
    });

    test('an abort reaches whoever is asked and never answers', async () => {
      const controller = new AbortController();
      const told = planThatTells((signal) => {
        setImmediate(() => controller.abort());
        return new Promise((_, reject) => {
          signal.addEventListener('abort', () => reject(signal.reason), { once: true });
        });
      });
      const error = await rejection(get().backend.restore(get().template, told.plan, controller.signal));
      expect(error.code).toBe('canceled');
      expect(told.calls).toEqual(['before', 'after']);
      await expectClean();
    });

    test('a capture that is refused causes none', async () => {
      const told = planThatTells();
      const foreign = { ...get().template, manifest: { ...get().template.manifest, backend: 'somewhere-else' } };
      expect((await rejection(get().backend.restore(foreign, told.plan))).code).toBe('conflict');
      expect(told.calls).toEqual([]);
    });

    test('an engine that ends by itself is reported too', async () => {
      const told = planThatTells();
      const sandbox = await restore(told.plan);
      await get().harness.provoke(sandbox, 'engine-died');
      await vi.waitFor(() => expect(told.calls).toEqual(['before', 'after']), get().harness.deadlineMs);
    });

    test('a cold boot gets the kernel arguments that are asked for', async () => {
      const told = planThatTells(async () => ({ kernelArguments: 'contract.answer=42 contract.more' }));
      const sandbox = await get().backend.create(get().harness.rootfs, told.plan);
      live.push(sandbox);
      expect(await readText(sandbox.agent, '/proc/cmdline')).toMatch(/ contract\.answer=42 contract\.more\n$/);
      expect(told.calls).toEqual(['before']);
    });
  });
}
