import { DEFAULT_NETWORK_POLICY } from '@agentenv/core';
import { describe, expect, test, vi } from 'vitest';
import type { KnownInstance, LaunchPlan, Reconciliation, RunningSandbox, StoredSnapshot } from '../backend.ts';
import { collectOutput, readText, run, spawn, writeText } from './guest-io.ts';
import type { BackendHarness } from './harness.ts';

export interface AdoptionContext {
  harness(): BackendHarness;
  planFor(): LaunchPlan;
  /** From the template, by the backend of now; not ended after the test, because its server crashes. */
  restoreAndLeave(plan: LaunchPlan): Promise<RunningSandbox>;
  /** The same from the disk of a capture. */
  bootAndLeave(plan: LaunchPlan, snapshot: StoredSnapshot): Promise<RunningSandbox>;
  /** Ended after the test. */
  restore(plan: LaunchPlan, snapshot: StoredSnapshot): Promise<RunningSandbox>;
  /** The server crashes; the next one has reconciled, and what it adopted is ended after the test. */
  restart(known: readonly KnownInstance[]): Promise<Reconciliation>;
  expectClean(): Promise<void>;
}

/** As the ledger has it when the server crashes: what was not JSON is not there. */
function knownAs(plan: LaunchPlan, sandbox: RunningSandbox, more: Partial<KnownInstance> = {}): KnownInstance {
  const { sandboxId, instanceId, resources, network, channelKey, afterStop } = plan;
  const identity: KnownInstance['identity'] = JSON.parse(JSON.stringify(sandbox.identity));
  const calls = afterStop === undefined ? {} : { afterStop };
  return { sandboxId, instanceId, wanted: 'running', identity, resources, network, channelKey, ...calls, ...more };
}

/** The part of the contract about generations that outlive their server. */
export function describeAdoption(context: AdoptionContext): void {
  const { planFor, restoreAndLeave, restart, expectClean } = context;

  async function restartWith(known: KnownInstance): Promise<RunningSandbox> {
    const { adopted, ended, endedKnown } = await restart([known]);
    expect({ ended, endedKnown }).toEqual({ ended: 0, endedKnown: [] });
    const [sandbox, ...others] = adopted;
    if (sandbox === undefined) throw new Error('it was not adopted');
    expect(others).toEqual([]);
    return sandbox;
  }

  describe('adoption', () => {
    test('what it does not know is ended, and what an older server described too little of', async () => {
      const plan = planFor();
      const known = await restoreAndLeave(plan);
      await restoreAndLeave(planFor());
      const never = planFor();
      const { ended, adopted } = await restart([
        knownAs(plan, known, { identity: { backend: known.identity.backend } }),
        knownAs(never, known, { identity: undefined }),
      ]);
      expect(adopted).toEqual([]);
      expect(ended).toBe(2);
      await expectClean();
    });

    test('a generation goes on with its processes and files; its programs are reached by pid', async () => {
      const plan = planFor();
      const former = await restoreAndLeave(plan);
      const cat = await spawn(former.agent, ['cat'], true);
      await writeText(former.agent, '/home/user/kept', 'kept');

      const sandbox = await restartWith(knownAs(plan, former));
      expect(sandbox.instanceId).toBe(plan.instanceId);
      expect(sandbox.identity).toEqual(former.identity);
      const attached = (await sandbox.agent.listProcesses()).find(({ pid }) => pid === cat.pid);
      if (attached === undefined) throw new Error('its program is gone');
      expect(attached).toMatchObject({ pid: cat.pid, id: cat.id, stdinOpen: true });
      const out = collectOutput(attached);
      await attached.writeStdin(Buffer.from('after\n'));
      await vi.waitFor(() => expect(out.text()).toBe('after\n'), context.harness().deadlineMs);
      expect(await readText(sandbox.agent, '/home/user/kept')).toBe('kept');
      expect((await run(sandbox.agent, ['echo', 'new'])).stdout).toBe('new\n');
      await sandbox.stop();
      expect((await sandbox.ended).reason).toBe('stopped');
      await expectClean();
    });

    test('one that was stopped for a capture runs again', async () => {
      const plan = planFor();
      const former = await restoreAndLeave(plan);
      const sleeper = await spawn(former.agent, ['sleep', '600']);
      await former.capture(await context.harness().emptyDirectory());

      const sandbox = await restartWith(knownAs(plan, former));
      expect((await sandbox.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
      expect((await run(sandbox.agent, ['true'])).code).toBe(0);
    });

    test('it is captured, and what was captured runs', async () => {
      const plan = planFor();
      const former = await restoreAndLeave(plan);
      const sleeper = await spawn(former.agent, ['sleep', '600']);
      await writeText(former.agent, '/home/user/before', 'before');
      const sandbox = await restartWith(knownAs(plan, former));
      await writeText(sandbox.agent, '/home/user/after', 'after');
      const directory = await context.harness().emptyDirectory();
      const captured = await sandbox.capture(directory);
      await sandbox.stop();
      const { manifest } = captured;
      const later = await context.restore(planFor(), { directory, manifest });
      await captured.release();
      expect(await readText(later.agent, '/home/user/before')).toBe('before');
      expect(await readText(later.agent, '/home/user/after')).toBe('after');
      expect((await later.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
    });

    test('one that was booted and was being captured without memory goes on, and is captured with it', async () => {
      const { emptyDirectory } = context.harness();
      const source = await restoreAndLeave(planFor());
      await writeText(source.agent, '/home/user/before', 'before');
      const disk = await emptyDirectory();
      const { manifest } = await source.captureDisk(disk);
      await source.stop();
      const plan = planFor();
      const former = await context.bootAndLeave(plan, { directory: disk, manifest });
      const sleeper = await spawn(former.agent, ['sleep', '600']);
      await former.captureDisk(await emptyDirectory());

      const sandbox = await restartWith(knownAs(plan, former));
      await writeText(sandbox.agent, '/home/user/after', 'after');
      const directory = await emptyDirectory();
      const captured = await sandbox.capture(directory);
      await sandbox.stop();
      const later = await context.restore(planFor(), { directory, manifest: captured.manifest });
      await captured.release();
      expect(await readText(later.agent, '/home/user/before')).toBe('before');
      expect(await readText(later.agent, '/home/user/after')).toBe('after');
      expect((await later.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
    });

    test('the network policy of the ledger is in force, whatever was before, and can be replaced', async () => {
      const plan = planFor();
      const former = await restoreAndLeave(plan);
      const { reachesInternet } = context.harness();
      const closed = { ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false };
      const sandbox = await restartWith(knownAs(plan, former, { network: closed }));
      expect(await reachesInternet(sandbox)).toBe(false);
      await sandbox.applyNetwork({ ...DEFAULT_NETWORK_POLICY, allowInternetAccess: true });
      expect(await reachesInternet(sandbox)).toBe(true);
    });

    test.for(['stop', 'engine-died'] as const)(
      'whoever waits for the end of its slot is told once, after %s',
      async (end) => {
        const plan = planFor();
        const former = await restoreAndLeave(plan);
        let told = 0;
        const sandbox = await restartWith(
          knownAs(plan, former, {
            async afterStop() {
              told++;
            },
          }),
        );
        expect(told).toBe(0);
        if (end === 'engine-died') {
          await context.harness().provoke(sandbox, end);
          expect((await sandbox.ended).reason).toBe(end);
        }
        await sandbox.stop();
        await sandbox.stop();
        expect(told).toBe(1);
        await expectClean();
      },
    );

    test('one that must not go on is ended, and so is one whose engine was another', async () => {
      const plans = [planFor(), planFor()] as const;
      const [paused, replaced] = await Promise.all([restoreAndLeave(plans[0]), restoreAndLeave(plans[1])]);
      let told = 0;
      const afterStop = async (): Promise<void> => {
        told++;
      };
      const { ended, endedKnown, adopted } = await restart([
        knownAs(plans[0], paused, { wanted: 'ended', afterStop }),
        knownAs(plans[1], paused, { afterStop }),
        knownAs(planFor(), replaced, { wanted: 'ended', afterStop }),
      ]);
      expect(adopted).toEqual([]);
      expect(ended).toBe(2);
      expect(endedKnown).toContain(plans[0].instanceId);
      expect(told).toBe(0);
      await expectClean();
    });

    test('one whose pause was taken back goes on, one that is held for its pause is ended', async () => {
      const plans = [planFor(), planFor()] as const;
      const [goesOn, held] = await Promise.all([restoreAndLeave(plans[0]), restoreAndLeave(plans[1])]);
      const { emptyDirectory } = context.harness();
      await goesOn.capture(await emptyDirectory());
      await goesOn.release();
      await held.capture(await emptyDirectory());
      const wanted = 'running-unless-held';
      const { adopted, ended, endedKnown } = await restart([
        knownAs(plans[0], goesOn, { wanted }),
        knownAs(plans[1], held, { wanted }),
        knownAs(planFor(), held, { wanted, identity: undefined }),
      ]);
      expect(adopted.map(({ instanceId }) => instanceId)).toEqual([plans[0].instanceId]);
      expect({ ended, endedKnown }).toEqual({ ended: 1, endedKnown: [plans[1].instanceId] });
      for (const sandbox of adopted) expect((await run(sandbox.agent, ['true'])).code).toBe(0);
      for (const sandbox of adopted) await sandbox.stop();
      await expectClean();
    });

    test('it is adopted again by the server after the next one', async () => {
      const plan = planFor();
      const first = await restoreAndLeave(plan);
      const sleeper = await spawn(first.agent, ['sleep', '600']);
      const second = await restartWith(knownAs(plan, first));
      const third = await restartWith(knownAs(plan, second));
      expect((await third.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
      await third.stop();
      await expectClean();
    });
  });
}
