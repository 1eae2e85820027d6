import { snapshotId } from '@agentenv/core';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
import { createFakeWorld, type FakeWorld } from '@agentenv/runtime';
import { createMemoryDisk, type MemoryDisk } from '@agentenv/storage/testing';
import { expect } from 'vitest';
import type { ExtensionClient } from '../hooks/extension-client.ts';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from './lifecycle-harness.ts';
import { createMortality, type Mortality } from './mortal-server.ts';

/** A host with a custom extension beside it, which outlive the servers on it. */
export interface CrashHost {
  readonly world: FakeWorld;
  readonly disk: MemoryDisk;
  readonly extension: RecordedExtension;
}

/** What the extension was told of: the instances, once for each call. */
export interface RecordedExtension {
  readonly client: ExtensionClient;
  readonly started: readonly string[];
  readonly stopped: readonly string[];
}

/** Every operation starts from this: what runs, what is paused, and a snapshot. */
export interface CrashScene {
  readonly harness: LifecycleHarness;
  readonly mortality: Mortality;
  /** Ids. */
  readonly running: string;
  readonly killedByTimeout: string;
  readonly paused: string;
}

/** All that its owner can tell of a sandbox, with what is in its guest. */
export interface SandboxView {
  readonly state: string;
  readonly deadline: number | undefined;
  readonly params: unknown;
  readonly denyOut: readonly string[];
  /** Of the host, when it runs. */
  readonly denyOutInForce: readonly string[] | undefined;
  readonly processes: readonly number[];
  readonly note: string | undefined;
}

export interface HostView {
  readonly sandboxes: ReadonlyMap<string, SandboxView>;
  /** Build ids and names of the snapshots, with what a sandbox made of each has in its file. */
  readonly snapshots: ReadonlyMap<string, string | undefined>;
}

export const NOTE = '/home/user/note';
export const RUNNING_SECONDS = 300;
export const KILLED_SECONDS = 200;

function createRecordedExtension(): RecordedExtension {
  const started: string[] = [];
  const stopped: string[] = [];
  return {
    started,
    stopped,
    client: {
      async startFresh({ sandboxInstanceId }) {
        started.push(sandboxInstanceId);
        return undefined;
      },
      async startResume({ sandboxInstanceId }) {
        started.push(sandboxInstanceId);
      },
      patchParams: async ({ patch }) => ({ ...patch, answered: true }),
      async stop({ sandboxInstanceId }) {
        stopped.push(sandboxInstanceId);
      },
    },
  };
}

export function createCrashHost(): CrashHost {
  return {
    world: createFakeWorld({ clock: createFakeClock() }),
    disk: createMemoryDisk(),
    extension: createRecordedExtension(),
  };
}

/** A server of which every call outside is one it can die at. */
async function startMortal(
  { world, disk, extension }: CrashHost,
  mortality: Mortality,
  { seed, clock }: { readonly seed: number; readonly clock: FakeClock },
): Promise<LifecycleHarness> {
  return await startLifecycle({
    ...{ disk, seed, clock },
    world: {
      ...world,
      artifacts: mortality.bind('artifacts', world.artifacts, ['put', 'remove']),
      faults: mortality.bind('backend', world.faults, ['pass']),
    },
    extension: mortality.bind('extension', extension.client, ['startFresh', 'startResume', 'patchParams', 'stop']),
    intercept: ({ kind }, apply) => mortality.call(`ledger.${kind}`, apply),
    wrapCaptures: (captures) => mortality.bind('captures', captures, ['allocate', 'remove']),
  });
}

/** The server after one that died, at the same time of the day; `mortality`: it may die as well. */
export async function startNext(
  host: CrashHost,
  former: FakeClock,
  seed: number,
  mortality: Mortality = createMortality(),
): Promise<LifecycleHarness> {
  const clock = createFakeClock(former.now());
  return await startMortal(host, mortality, { seed, clock });
}

function guestOf(host: CrashHost, id: string) {
  return host.world.machineOf(id).guest;
}

function note(host: CrashHost, id: string): string | undefined {
  const { files } = guestOf(host, id);
  return files.has(NOTE) ? files.text(NOTE) : undefined;
}

async function furnish(host: CrashHost, harness: LifecycleHarness, text: string, request: object): Promise<string> {
  const { id } = await harness.orchestrator.create({ ...CREATE_BASE, ...request });
  const { files } = guestOf(host, id);
  const owner = { uid: 1000, gid: 1000 };
  files.write({ path: NOTE, ...owner, mode: 0o644, content: Buffer.from(text), xattrs: new Map() });
  const program = { kind: 'sleep', milliseconds: 86_400_000 } as const;
  const process = { uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, program };
  guestOf(host, id).spawn({ ...process, killInMs: undefined });
  return id;
}

/** The ids are the same whenever the seed is. */
export async function setScene(host: CrashHost, seed = 1): Promise<CrashScene> {
  const mortality = createMortality();
  const harness = await startMortal(host, mortality, { seed, clock: createFakeClock() });
  const { orchestrator } = harness;
  const pauses = { onTimeout: 'pause', autoResume: true } as const;
  const running = await furnish(host, harness, 'first', { timeoutSeconds: RUNNING_SECONDS, ...pauses });
  await orchestrator.snapshot(running, 'data');
  guestOf(host, running).files.write({
    ...{ path: NOTE, uid: 1000, gid: 1000, mode: 0o644, xattrs: new Map() },
    content: Buffer.from('second'),
  });
  const killedByTimeout = await furnish(host, harness, 'killed', { timeoutSeconds: KILLED_SECONDS });
  const paused = await furnish(host, harness, 'paused', { timeoutSeconds: RUNNING_SECONDS, ...pauses });
  await orchestrator.pause(paused);
  return { harness, mortality, running, killedByTimeout, paused };
}

/** Work that is ready goes on until nothing more happens without time passing. */
export async function settle(clock: FakeClock): Promise<void> {
  for (let turn = 0; turn < 30; turn++) await clock.advance(0);
}

/** Ledger, engines, list, captures, slots and places on the host tell the same, and no guest was left stopped. */
export async function expectConsistent(host: CrashHost, harness: LifecycleHarness, when: string): Promise<void> {
  const { world, disk } = host;
  const { sandboxes } = harness.orchestrator.list(LIST_ALL);
  const ids = sandboxes.map(({ id }) => id).toSorted();
  const running = sandboxes.filter(({ state }) => state === 'running').map(({ id }) => id);
  const stored = harness.stored();
  expect(stored.map(({ id }) => id).toSorted(), when).toEqual(ids);
  expect([...world.machines.values()].map(({ sandboxId }) => sandboxId).toSorted(), when).toEqual(running.toSorted());
  const captures = stored.flatMap(({ capture }) => capture ?? []);
  expect([...disk.captures].toSorted(), when).toEqual([...captures, ...disk.snapshots.keys()].toSorted());
  expect(world.slots.inUse, when).toBe(running.length);
  expect(harness.admission.status(), when).toMatchObject({ sandboxes: running.length, starting: 0 });
  for (const { guest } of world.machines.values()) await guest.running(AbortSignal.timeout(1_000));
}

/** Looks at everything; paused sandboxes are resumed and sandboxes are made of snapshots for it. */
export async function viewHost(host: CrashHost, harness: LifecycleHarness): Promise<HostView> {
  const { orchestrator, snapshots } = harness;
  const sandboxes = new Map<string, SandboxView>();
  for (const record of orchestrator.list(LIST_ALL).sandboxes) {
    const { id, state, deadline, network } = record;
    if (state === 'paused') await orchestrator.resume(id, 60);
    const { policy } = host.world.machineOf(id);
    sandboxes.set(id, {
      ...{ state, deadline, params: record.customExtensionParams, denyOut: network.denyOut },
      denyOutInForce: state === 'running' ? policy.denyOut : undefined,
      processes: guestOf(host, id).processes.map(({ pid }) => pid),
      note: note(host, id),
    });
  }
  const made = new Map<string, string | undefined>();
  for (const snapshot of snapshots.list({ sandboxId: undefined, name: undefined })) {
    const { id } = await orchestrator.create({ ...CREATE_BASE, template: snapshot.buildId });
    made.set(`${snapshot.buildId} ${snapshotId(snapshot, snapshots.namespace)}`, note(host, id));
    await orchestrator.kill(id, 'test');
  }
  return { sandboxes, snapshots: made };
}

/** Everything goes through the front door, and nothing is left. */
export async function endAll(host: CrashHost, harness: LifecycleHarness, when: string): Promise<void> {
  const { orchestrator, snapshots } = harness;
  for (const { id } of orchestrator.list(LIST_ALL).sandboxes) await orchestrator.kill(id, 'test');
  for (const { buildId } of snapshots.list({ sandboxId: undefined, name: undefined })) {
    await orchestrator.deleteTemplate(buildId);
  }
  expect(harness.leftovers(), when).toEqual({});
  expect(host.world.slots.inUse, when).toBe(0);
  await orchestrator[Symbol.asyncDispose]();
}
