import { DEFAULT_NETWORK_POLICY } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import {
  type CrashScene,
  createCrashHost,
  endAll,
  expectConsistent,
  type HostView,
  KILLED_SECONDS,
  RUNNING_SECONDS,
  setScene,
  settle,
  startNext,
  viewHost,
} from '../testing/crash-scene.ts';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness } from '../testing/lifecycle-harness.ts';
import { createMortality } from '../testing/mortal-server.ts';

type Operation = (scene: CrashScene) => Promise<unknown>;

const COLD = {
  ...{ image: 'registry.test/base:1', rootfs: { path: '/fake/base', digest: 'ba5e'.repeat(16) } },
  resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
};

/** Everything a client, a timeout or the operator can have done to a sandbox. */
const OPERATIONS: Readonly<Record<string, Operation>> = {
  create: ({ harness }) => harness.orchestrator.create(CREATE_BASE),
  'cold create': ({ harness }) => harness.orchestrator.createCold({ ...CREATE_BASE, ...COLD }),
  'create from a snapshot': ({ harness }) => harness.orchestrator.create({ ...CREATE_BASE, template: 'data' }),
  pause: ({ harness, running }) => harness.orchestrator.pause(running),
  'pause without memory': ({ harness, running }) => harness.orchestrator.pause(running, 'disk'),
  resume: ({ harness, paused }) => harness.orchestrator.resume(paused, 900),
  'boot of a paused one': ({ harness, paused }) => harness.orchestrator.resume(paused, 900, 'disk'),
  'connect to a paused one': ({ harness, paused }) => harness.orchestrator.connect(paused, 900),
  'connect to a running one': ({ harness, running }) => harness.orchestrator.connect(running, 900),
  'a request to a paused one': ({ harness, paused }) => harness.orchestrator.wake(paused),
  'set timeout': ({ harness, running }) => harness.orchestrator.setTimeout(running, 900),
  'a timeout of 0': ({ harness, running }) => harness.orchestrator.setTimeout(running, 0),
  refresh: ({ harness, running }) => harness.orchestrator.refresh(running, 900),
  'network update': ({ harness, running }) =>
    harness.orchestrator.updateNetwork(running, { ...DEFAULT_NETWORK_POLICY, denyOut: ['198.51.100.0/24'] }),
  'patch of the parameters': ({ harness, running }) => harness.orchestrator.patchParams(running, { plan: 'large' }),
  'snapshot that takes over a name': ({ harness, running }) => harness.orchestrator.snapshot(running, 'data'),
  'snapshot without a name': ({ harness, running }) => harness.orchestrator.snapshot(running, undefined),
  fork: ({ harness, running }) => harness.orchestrator.fork(running, { count: 3, timeoutSeconds: 900 }),
  'kill of a running one': ({ harness, running }) => harness.orchestrator.kill(running, 'test'),
  'kill of a paused one': ({ harness, paused }) => harness.orchestrator.kill(paused, 'test'),
  'deletion of a snapshot': ({ harness }) => harness.orchestrator.deleteTemplate('data'),
  async 'a timeout that kills'({ harness }) {
    await harness.clock.advance(KILLED_SECONDS * 1_000);
  },
  async 'a timeout that pauses'({ harness, killedByTimeout }) {
    await harness.orchestrator.setTimeout(killedByTimeout, 2 * RUNNING_SECONDS);
    await harness.clock.advance(RUNNING_SECONDS * 1_000);
  },
  async 'end of the server'({ harness }) {
    await harness.orchestrator[Symbol.asyncDispose]();
  },
};

/** Calls at which a stop is perhaps sent, and not yet written down as sent: it may come once more. */
const ABOUT_A_STOP = ['extension.stop', 'ledger.delete'];

/** Hundreds of servers. */
const TIME = { timeout: 60_000 };

function abandon(request: Promise<unknown>): Promise<unknown> {
  return request.catch(() => undefined);
}

/** What the next server makes of the host, when the operation was done whole, or not at all. */
async function outcomeOf(operation: Operation | undefined): Promise<HostView> {
  const host = createCrashHost();
  const scene = await setScene(host);
  await operation?.(scene);
  await settle(scene.harness.clock);
  scene.mortality.die();
  const next = await startNext(host, scene.harness.clock, 2);
  await settle(next.clock);
  return await viewHost(host, next);
}

/** Each sandbox is as it was before or as it is afterwards; afterwards, when the caller was answered. */
function expectDoneOrNot(
  actual: HostView,
  { before, after, answered }: { readonly before: HostView; readonly after: HostView; readonly answered: boolean },
  when: string,
): void {
  const ids = new Set([...before.sandboxes.keys(), ...after.sandboxes.keys(), ...actual.sandboxes.keys()]);
  for (const id of ids) {
    const allowed = [after.sandboxes.get(id), ...(answered ? [] : [before.sandboxes.get(id)])];
    expect(allowed, `${when}: sandbox ${id}`).toContainEqual(actual.sandboxes.get(id));
  }
  const allowed = [after.snapshots, ...(answered ? [] : [before.snapshots])];
  expect(allowed, `${when}: snapshots`).toContainEqual(actual.snapshots);
}

/** Nothing comes back whose end was told. */
function expectKillsStand({ harness }: CrashScene, next: LifecycleHarness, when: string): void {
  const told = harness.events.filter(({ type }) => type === 'sandbox.lifecycle.killed');
  const listed = next.orchestrator.list(LIST_ALL).sandboxes.map(({ id }) => id);
  for (const { sandbox } of told)
    expect(listed, `${when}: the end of ${sandbox.id} was told`).not.toContain(sandbox.id);
}

/** Lets the server die at call `at`; undefined when the operation makes fewer. */
async function crashAt(operation: Operation, at: number, when: 'before' | 'after') {
  const host = createCrashHost();
  const scene = await setScene(host);
  const { mortality, harness } = scene;
  mortality.dieAt(at, when);
  let answered = false;
  const running = (async () => {
    await operation(scene);
    answered = true;
  })();
  const finished = (async () => {
    await abandon(running);
    await settle(harness.clock);
    return undefined;
  })();
  const diedAt = await Promise.race([mortality.died, finished]);
  const answeredInTime = answered;
  // What was under way on the host comes to its end, or not, before the next server looks.
  await settle(harness.clock);
  return { host, scene, diedAt, answered: answeredInTime };
}

describe.each(Object.keys(OPERATIONS))('a server that dies during %s', (name) => {
  const operation = OPERATIONS[name];
  if (operation === undefined) throw new Error(name);

  test('is followed by one that finds it done or not done, whatever call outside it died at', TIME, async () => {
    const [before, after] = await Promise.all([outcomeOf(undefined), outcomeOf(operation)]);
    let points = 0;
    for (const when of ['before', 'after'] as const) {
      for (let at = 1; ; at++) {
        const { host, scene, diedAt, answered } = await crashAt(operation, at, when);
        if (diedAt === undefined) break;
        points++;
        const point = `${when} call ${at}, ${diedAt}`;
        const next = await startNext(host, scene.harness.clock, 2);
        await settle(next.clock);
        await expectConsistent(host, next, point);
        expectKillsStand(scene, next, point);
        expectDoneOrNot(await viewHost(host, next), { before, after, answered }, point);
        await endAll(host, next, point);
        const { started, stopped } = host.extension;
        const twice = stopped.filter((instance, index) => stopped.indexOf(instance) !== index);
        const missing = started.filter((instance) => !stopped.includes(instance));
        expect(missing, point).toEqual([]);
        if (!ABOUT_A_STOP.includes(diedAt)) expect(twice, point).toEqual([]);
      }
    }
    expect(points).toBeGreaterThan(0);
  });

  test(
    'and by one that dies itself while it puts things in order, then by one that finds it in order',
    TIME,
    async () => {
      const [before, after] = await Promise.all([outcomeOf(undefined), outcomeOf(operation)]);
      for (let at = 1, hit = true; hit; at++) {
        hit = false;
        for (let second = 1, died = true; died; second++) {
          const { host, scene, diedAt, answered } = await crashAt(operation, at, 'after');
          if (diedAt === undefined) break;
          hit = true;
          const mortality = createMortality();
          mortality.dieAt(second, second % 2 === 0 ? 'before' : 'after');
          const starting = startNext(host, scene.harness.clock, 2, mortality);
          const diedAgain = await Promise.race([mortality.died, abandon(starting).then(() => undefined)]);
          died = diedAgain !== undefined;
          await settle(scene.harness.clock);
          mortality.die();
          const point = `after call ${at}, ${diedAt}, then call ${second}, ${diedAgain}`;
          const third = await startNext(host, scene.harness.clock, 3);
          await settle(third.clock);
          await expectConsistent(host, third, point);
          expectKillsStand(scene, third, point);
          expectDoneOrNot(await viewHost(host, third), { before, after, answered }, point);
          await endAll(host, third, point);
        }
      }
    },
  );
});
