import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, startLifecycle } from '../testing/lifecycle-harness.ts';
import { createMortality } from '../testing/mortal-server.ts';

const OUTAGE_MS = 3_600_000;
const COUNT = 12;
const WIDTH = 4;

/** A server that finds sandboxes whose time passed long ago, the last that was created first. */
async function afterOutage(onTimeout: 'pause' | 'kill') {
  const world = createFakeWorld({ clock: createFakeClock() });
  const disk = createMemoryDisk();
  const mortality = createMortality();
  const former = await startLifecycle({
    ...{ disk, world: { ...world, faults: mortality.bind('backend', world.faults, ['pass']) } },
    intercept: ({ kind }, apply) => mortality.call(`ledger.${kind}`, apply),
  });
  const earliestFirst: string[] = [];
  for (let index = 0; index < COUNT; index++) {
    const request = { ...CREATE_BASE, timeoutSeconds: 100 - index, onTimeout };
    earliestFirst.unshift((await former.orchestrator.create(request)).id);
  }
  mortality.die();
  const point = onTimeout === 'pause' ? 'capture' : 'stop';
  const faults = earliestFirst.map(() => world.faults.next(point, { kind: 'hang' }));
  const clock = createFakeClock(former.clock.now() + OUTAGE_MS);
  const next = await startLifecycle({ world, disk, seed: 2, clock });
  await clock.advance(0);
  for (let turn = 0; turn < 20; turn++) await clock.advance(0);
  return { next, clock, world, faults, earliestFirst };
}

describe('after a long outage', () => {
  test('a few of the sandboxes that are due are paused at a time, the earliest first', async () => {
    const { next, clock, faults, earliestFirst } = await afterOutage('pause');
    const { orchestrator } = next;
    const inState = (state: 'pausing' | 'paused') => {
      const { sandboxes } = orchestrator.list(LIST_ALL);
      return earliestFirst.filter((id) => sandboxes.find((record) => record.id === id)?.state === state);
    };
    for (let done = 0; done < COUNT; done++) {
      expect(inState('paused')).toEqual(earliestFirst.slice(0, done));
      expect(inState('pausing')).toEqual(earliestFirst.slice(done, done + WIDTH));
      faults[done]?.release();
      await next.until(() => inState('paused').length === done + 1);
      await clock.advance(0);
    }
    expect(next.counted.filter((call) => call === 'pauseSucceeded')).toHaveLength(COUNT);
    expect(next.world.machines.size).toBe(0);
  });

  test('a few of the sandboxes that are due are ended at a time', async () => {
    const { next, faults } = await afterOutage('kill');
    for (let done = 0; done < COUNT; done++) {
      expect(next.counted.filter((call) => call === 'ended:expired')).toHaveLength(Math.min(COUNT, done + WIDTH));
      faults[done]?.release();
      await next.until(() => next.stored().length === COUNT - done - 1);
      await next.clock.advance(0);
    }
    expect(next.leftovers()).toEqual({});
  });

  test('what an owner asks for while his sandbox waits is done at once, and counts', async () => {
    const { next, clock, faults, earliestFirst } = await afterOutage('pause');
    const { orchestrator } = next;
    const [connected, extended, killed, paused] = earliestFirst.slice(-4) as [string, string, string, string];
    expect(await orchestrator.connect(connected, 600)).toMatchObject({ resumed: false });
    await orchestrator.setTimeout(extended, 700);
    const stopping = orchestrator.kill(killed, 'test');
    await stopping;
    const pausing = orchestrator.pause(paused);
    await next.until(() => orchestrator.get(paused).state === 'pausing');
    for (const fault of faults) fault.release();
    await pausing;
    for (let turn = 0; turn < 50; turn++) await clock.advance(100);
    const states = Object.fromEntries(orchestrator.list(LIST_ALL).sandboxes.map(({ id, state }) => [id, state]));
    expect(states).toEqual(
      Object.fromEntries([
        ...earliestFirst.filter((id) => id !== killed).map((id) => [id, 'paused'] as const),
        [connected, 'running'],
        [extended, 'running'],
      ]),
    );
    await clock.advance(600_000);
    expect(orchestrator.get(connected).state).toBe('paused');
    await clock.advance(100_000);
    expect(orchestrator.get(extended).state).toBe('paused');
    expect(next.counted.filter((call) => call === 'pauseSucceeded')).toHaveLength(COUNT - 1);
  });
});
