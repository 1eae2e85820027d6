import { PlatformError, type SandboxId } from '@agentenv/core';
import { createSeededRandom, type SeededRandom } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

/** What must exist: id → deadline, milliseconds since the epoch. */
type Model = Map<SandboxId, number>;

const GONE = 'i00000000000000000000' as SandboxId;

function someId(rng: SeededRandom, model: Model): SandboxId {
  const ids = [...model.keys()];
  return rng.below(10) === 0 ? GONE : (ids[rng.below(ids.length)] ?? GONE);
}

/** Table, host, disk and admission agree with the model and with each other. */
function expectModel(harness: LifecycleHarness, model: Model): void {
  const expected = [...model.keys()].sort();
  const listed = harness.orchestrator.list({ ...LIST_ALL, limit: 10_000 });
  expect(listed.sandboxes.map(({ id }) => id).sort()).toEqual(expected);
  expect(listed.totalRunning).toBe(expected.length);
  expect([...harness.world.machines.values()].map(({ sandboxId }) => sandboxId).sort()).toEqual(expected);
  expect([...harness.disk.sandboxes.keys()].sort()).toEqual(expected);
  expect(harness.admission.status()).toMatchObject({ sandboxes: expected.length, starting: 0 });
  for (const [id, deadline] of model) expect(harness.orchestrator.get(id).deadline).toBe(deadline);
}

async function createOne(harness: LifecycleHarness, rng: SeededRandom, model: Model): Promise<void> {
  const timeoutSeconds = 1 + rng.below(120);
  const point = rng.pick(['start', 'activate', undefined, undefined, undefined]);
  if (point !== undefined) harness.world.faults.next(point, { kind: 'fail' });
  const creating = harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds });
  if (point !== undefined) {
    await expect(creating).rejects.toMatchObject({ code: 'create_failed' });
    return;
  }
  const { id } = await creating;
  model.set(id, harness.clock.now() + timeoutSeconds * 1_000);
}

async function changeDeadline(harness: LifecycleHarness, rng: SeededRandom, model: Model): Promise<void> {
  const id = someId(rng, model);
  const seconds = 1 + rng.below(120);
  const operation = rng.pick(['setTimeout', 'connect', 'refresh']);
  const changing: Promise<unknown> = harness.orchestrator[operation](id, seconds);
  const current = model.get(id);
  if (current === undefined) {
    await expect(changing).rejects.toMatchObject({ code: 'not_found' });
    return;
  }
  await changing;
  const asked = harness.clock.now() + seconds * 1_000;
  model.set(id, operation === 'setTimeout' ? asked : Math.max(current, asked));
}

async function end(harness: LifecycleHarness, rng: SeededRandom, model: Model): Promise<void> {
  const id = someId(rng, model);
  const how = rng.pick(['kill', 'kill', 'timeout 0', 'engine', 'stubborn engine']);
  if (!model.has(id)) {
    await expect(harness.orchestrator.kill(id, 'soak')).rejects.toMatchObject({ code: 'not_found' });
    return;
  }
  if (how === 'engine') {
    harness.world.machineOf(id).end('engine-died', 'soak');
    await harness.until(() => !harness.disk.sandboxes.has(id) && harness.admission.status().sandboxes < model.size);
  } else if (how === 'timeout 0') {
    await harness.orchestrator.setTimeout(id, 0);
  } else {
    if (how === 'stubborn engine') {
      harness.world.faults.next('stop', { kind: 'fail' });
      await expect(harness.orchestrator.kill(id, 'soak')).rejects.toMatchObject({ code: 'internal' });
    }
    await harness.orchestrator.kill(id, 'soak');
  }
  model.delete(id);
}

async function passTime(harness: LifecycleHarness, rng: SeededRandom, model: Model): Promise<void> {
  await harness.clock.advance(rng.below(30_000));
  const now = harness.clock.now();
  for (const [id, deadline] of model) if (deadline <= now) model.delete(id);
}

describe('a long random life', { timeout: 30_000 }, () => {
  test.each([1, 2, 3, 4, 5, 6])(
    'one operation after the other agrees with the model after each (seed %i)',
    async (seed) => {
      const rng = createSeededRandom(seed);
      const harness = await startLifecycle({ seed });
      const model: Model = new Map();
      for (let step = 0; step < 250; step++) {
        const act = rng.pick([createOne, createOne, changeDeadline, end, passTime]);
        await act(harness, rng, model);
        expectModel(harness, model);
      }
      for (const id of model.keys()) await harness.orchestrator.kill(id, 'the end');
      expect(harness.leftovers()).toEqual({});
      expect(await harness.timersLeft()).toBe(0);
    },
  );

  test.each([11, 12, 13, 14, 15, 16])(
    'everything at once ends in agreement and leaves nothing (seed %i)',
    async (seed) => {
      const rng = createSeededRandom(seed);
      const harness = await startLifecycle({ seed });
      const outcomes: Promise<unknown>[] = [];
      const seen = new Set<string>([GONE]);
      const anyId = (): string => [...seen][rng.below(seen.size)] ?? GONE;
      for (let step = 0; step < 300; step++) {
        for (const { id } of harness.orchestrator.list(LIST_ALL).sandboxes) seen.add(id);
        switch (rng.below(8)) {
          case 0:
          case 1: {
            const point = rng.pick(['start', 'activate', 'stop']);
            const effect = rng.pick(['fail', 'slow', 'none', 'none']);
            if (effect === 'fail') harness.world.faults.next(point, { kind: 'fail' });
            if (effect === 'slow') harness.world.faults.next(point, { kind: 'slow', milliseconds: rng.below(5_000) });
            outcomes.push(harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 1 + rng.below(60) }));
            break;
          }
          case 2:
            outcomes.push(harness.orchestrator.kill(anyId(), 'soak'));
            break;
          case 3:
            outcomes.push(harness.orchestrator.setTimeout(anyId(), rng.below(60)));
            break;
          case 4:
            outcomes.push(harness.orchestrator.connect(anyId(), 1 + rng.below(60)));
            break;
          case 5:
            for (const machine of [...harness.world.machines.values()].slice(0, 1)) machine.end('guest-panic', 'soak');
            break;
          case 6:
            outcomes.push(harness.orchestrator.refresh(anyId(), 1 + rng.below(60)));
            break;
          default:
            await harness.clock.advance(rng.below(3_000));
        }
        outcomes.at(-1)?.catch(() => undefined);
      }
      // Long enough for every slow step, every retry and every deadline.
      await harness.clock.advance(200_000);
      const allowed = new Set(['not_found', 'killed', 'create_failed', 'internal']);
      for (const outcome of await Promise.allSettled(outcomes)) {
        if (outcome.status === 'fulfilled') continue;
        if (!(outcome.reason instanceof PlatformError)) throw outcome.reason;
        expect(allowed).toContain(outcome.reason.code);
      }
      expect(harness.leftovers()).toEqual({});
      expect(await harness.timersLeft()).toBe(0);
    },
  );
});
