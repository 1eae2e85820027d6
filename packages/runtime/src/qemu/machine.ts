import { type Agent, createAgent, createUnixSocketEndpoint } from '@agentenv/agent';
import { type NetworkPolicy, PlatformError, type Resources } from '@agentenv/core';
import { keptActivation } from '../activation.ts';
import type { KnownInstance, RootFilesystem, RuntimeEnd, SlotCalls, StartAdvice, StoredSnapshot } from '../backend.ts';
import type { Exec } from '../exec.ts';
import type { NetworkSlot, NetworkSlots } from '../network/slot.ts';
import { createSlotVisit, type SlotVisit } from '../slot-visit.ts';
import { adoptEngine } from './adopt-engine.ts';
import { capturedRootfs } from './captured-rootfs.ts';
import { emptyDisk } from './empty-disk.ts';
import { type Engine, startEngine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import type { MachineIdentity, MachineOrigin } from './engine-identity.ts';
import { type BootSoFar, deservesAnotherBoot, guestTimers } from './guest-timers.ts';
import { kernelCommandLine } from './qemu-args.ts';
import { restoreEngine } from './restore-engine.ts';
import { diskFiles, type SnapshotFiles, snapshotFiles } from './snapshot-files.ts';

/** A guest that was never activated answers to this key. */
const UNBORN_KEY = new Uint8Array(16);
/** A boot on a loaded host; a quiet one needs two seconds. */
const BOOT_DEADLINE_MS = 90_000;
/** Of a sandbox somebody waits for. */
const SLOW_BOOT_MS = 12_000;
const RESTORE_DEADLINE_MS = 30_000;
/** A guest that runs answers at once; on a loaded host losing it would be worse than waiting. */
const ADOPTION_DEADLINE_MS = 30_000;
/** The channel and the engine end together; which was seen first says nothing, so the engine gets this long to report. */
const ENGINE_REPORT_MS = 1_000;

export interface MachineDeps {
  readonly host: EngineHost;
  readonly slots: NetworkSlots;
  readonly exec: Exec;
}

/** An engine with its slot and the channel to its guest; not yet anybody's sandbox. Disposal leaves nothing of it. */
export interface Machine extends AsyncDisposable {
  readonly engine: Engine;
  readonly slot: NetworkSlot;
  /** Tells of the slot before the guest goes on as somebody's; not when it was made for somebody. */
  prepareSlot(calls: SlotCalls, signal: AbortSignal): Promise<StartAdvice>;
  readonly agent: Agent;
  readonly resources: Resources;
  readonly rootfs: RootFilesystem;
  /** What it was started on; without memory where it was booted, undefined when on an empty disk. */
  readonly origin: MachineOrigin | undefined;
  /** Of its engine. */
  readonly fingerprint: Readonly<Record<string, string>>;
  /** Lets go of it; the guest runs on in its slot. */
  abandon(): Promise<void>;
  /** The guest or its engine ended, or its channel was lost while the engine went on. */
  readonly ended: Promise<RuntimeEnd>;
}

/** Runs `work` until the engine ends; then it is aborted and the end is the error, `create_failed`. */
export async function whileRunning<T>(
  engine: Engine,
  signal: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const over = new AbortController();
  let finished = false;
  void engine.ended.then(({ reason, detail }) => {
    if (finished) return;
    over.abort(new PlatformError('create_failed', `the virtual machine ended (${reason})`, { details: { detail } }));
  });
  try {
    return await work(signal === undefined ? over.signal : AbortSignal.any([signal, over.signal]));
  } catch (caught) {
    if (!signal?.aborted) over.signal.throwIfAborted();
    throw caught;
  } finally {
    finished = true;
  }
}

async function connectAgent(
  host: EngineHost,
  engine: Engine,
  slot: NetworkSlot,
  channel: { readonly key: Uint8Array; readonly deadlineMs: number },
  signal: AbortSignal,
): Promise<Agent> {
  const { clock, rng } = host;
  const log = host.log.child({ engine: engine.identity.name });
  const socket = await createUnixSocketEndpoint(engine.agentSocket, { clock }).connect(signal);
  const slotAddress = slot.guest.ipv4.split('/')[0] ?? '';
  const { key, deadlineMs: resyncTimeoutMs } = channel;
  return createAgent({ socket, key, clock, rng, log, slotAddress, resyncTimeoutMs }, signal);
}

function endOf(host: EngineHost, engine: Engine, agent: Agent): Promise<RuntimeEnd> {
  const { promise, resolve } = Promise.withResolvers<RuntimeEnd>();
  void engine.ended.then(resolve);
  void agent.closed.then(({ kind, reason }) => {
    if (kind === 'closed') return;
    const detail = `the channel to the guest was lost: ${reason}`;
    host.clock.timer(ENGINE_REPORT_MS, () => resolve({ reason: 'channel-lost', detail }));
  });
  return promise;
}

/** For whom a machine is made; nobody's has a policy alone. */
export interface MachineUse {
  readonly network: NetworkPolicy;
  readonly calls?: SlotCalls;
  /** Waits for the turn to start an engine; what is told of the slot may take its time before. */
  readonly turn?: (signal: AbortSignal | undefined) => Promise<Disposable>;
}

/** What an engine is about to become. */
export interface GuestPlan {
  readonly resources: Resources;
  readonly rootfs: RootFilesystem;
  readonly origin: MachineOrigin | undefined;
  /** Lets the guest run, where it does not by itself. */
  readonly go: (engine: Engine, signal: AbortSignal) => Promise<unknown>;
  readonly channel: { readonly key: Uint8Array; readonly deadlineMs: number };
}

interface MachinePlan extends GuestPlan {
  readonly use: MachineUse;
  readonly start: (slot: NetworkSlot, advice: StartAdvice) => Promise<Engine>;
  /** False: another engine has to be started instead. Attempts count from 1. */
  readonly accepts: (agent: Agent, attempt: number, tookMs: number) => Promise<boolean>;
}

/** An engine in its slot. */
export interface Seat {
  readonly slot: NetworkSlot;
  readonly visit: SlotVisit;
  readonly engine: Engine;
}

/** Lets the guest of an engine run; resolves when its agent answers. */
function letRun(
  host: EngineHost,
  { slot, engine }: Pick<Seat, 'slot' | 'engine'>,
  plan: GuestPlan,
  signal: AbortSignal | undefined,
): Promise<Agent> {
  return whileRunning(engine, signal, async (running) => {
    const connecting = connectAgent(host, engine, slot, plan.channel, running);
    // Both are under way at once; when the first fails the abort ends the other.
    connecting.catch(() => undefined);
    await plan.go(engine, running);
    return connecting;
  });
}

/** An engine whose guest answers. */
interface ReachedGuest extends AsyncDisposable {
  readonly engine: Engine;
  readonly agent: Agent;
}

/** Starts engines in the slot until one has an acceptable guest. */
async function reachGuest(
  host: EngineHost,
  plan: MachinePlan,
  slot: NetworkSlot,
  advice: StartAdvice,
  signal: AbortSignal | undefined,
): Promise<ReachedGuest> {
  for (let attempt = 1; ; attempt++) {
    const began = host.clock.monotonic();
    await using undo = new AsyncDisposableStack();
    const engine = undo.use(await plan.start(slot, advice));
    const agent = await letRun(host, { slot, engine }, plan, signal);
    undo.use(agent);
    if (!(await plan.accepts(agent, attempt, host.clock.monotonic() - began))) continue;
    const release = undo.move();
    return { engine, agent, [Symbol.asyncDispose]: () => release.disposeAsync() };
  }
}

/** The guest runs and its agent answers; what `undo` holds belongs to the machine then. */
export async function bringUp(
  { host }: MachineDeps,
  { slot, visit, engine }: Seat,
  plan: GuestPlan,
  undo: AsyncDisposableStack,
  signal: AbortSignal | undefined,
): Promise<Machine> {
  const agent = undo.use(await letRun(host, { slot, engine }, plan, signal));
  const { resources, rootfs, origin } = plan;
  const facts = { resources, rootfs, origin, fingerprint: host.fingerprint };
  return machineOf({ host, slot, visit, engine, agent, facts, release: undo.move() });
}

async function assemble(deps: MachineDeps, plan: MachinePlan, signal: AbortSignal | undefined): Promise<Machine> {
  const { host, slots } = deps;
  const { network, calls = {}, turn } = plan.use;
  await using undo = new AsyncDisposableStack();
  const slot = await slots.acquire(network, signal);
  undo.defer(() => slot.release());
  const visit = createSlotVisit();
  undo.defer(() => visit.end());
  const advice = await visit.begin(calls, slot, signal ?? new AbortController().signal);
  using _turn = await turn?.(signal);
  const { engine, agent } = undo.use(await reachGuest(host, plan, slot, advice, signal));
  const { resources, rootfs, origin } = plan;
  const facts = { resources, rootfs, origin, fingerprint: host.fingerprint };
  return machineOf({ host, slot, visit, engine, agent, facts, release: undo.move() });
}

function machineOf(parts: {
  readonly host: EngineHost;
  readonly slot: NetworkSlot;
  readonly visit: SlotVisit;
  readonly engine: Engine;
  readonly agent: Agent;
  readonly facts: Pick<Machine, 'resources' | 'rootfs' | 'origin' | 'fingerprint'>;
  readonly release: AsyncDisposableStack;
}): Machine {
  const { host, slot, visit, engine, agent, facts, release } = parts;
  return {
    engine,
    slot,
    prepareSlot: (later, aborted) => visit.begin(later, slot, aborted),
    agent,
    ...facts,
    async abandon() {
      await agent[Symbol.asyncDispose]();
      await engine.abandon();
    },
    ended: endOf(host, engine, agent),
    [Symbol.asyncDispose]: () => release.disposeAsync(),
  };
}

/**
 * True when the timers of a booted guest can be used; false: it has to be booted again. Throws `create_failed` when there
 * is no hope.
 */
async function hasTimers(
  { accelerator, log }: EngineHost,
  agent: Agent,
  boot: BootSoFar,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  const timers = await guestTimers(agent, accelerator, signal);
  if (timers === 'good') return true;
  log.warn({ timers, attempt: boot.attempt }, 'a guest booted with timers that are not right: the host was too busy');
  if (deservesAnotherBoot(timers, boot)) return false;
  if (timers === 'dead') throw new PlatformError('create_failed', 'the guest boots without timers on this busy host');
  return true;
}

export interface BootRequest {
  readonly rootfs: RootFilesystem;
  readonly resources: Resources;
  readonly use: MachineUse;
  /** The disk it goes on with; an empty one unless given. */
  readonly disk?: SnapshotFiles;
  /** Milliseconds beyond which a boot is not repeated for better timers; it always is unless given. */
  readonly longestMs?: number;
}

/** Boots a root file system; resolves when the guest agent answers. */
export async function bootMachine(deps: MachineDeps, request: BootRequest, signal?: AbortSignal): Promise<Machine> {
  const { host, exec } = deps;
  const { rootfs, resources, use, disk: origin, longestMs = Number.POSITIVE_INFINITY } = request;
  const disk = origin?.disk.path ?? (await emptyDisk(host.layout.disks, resources.diskSizeMB, exec, signal));
  const diskLayers = origin?.diskLayers ?? [];
  const files = { memory: undefined, rootfs: rootfs.path, disk, diskLayers };
  return assemble(
    deps,
    {
      resources,
      use,
      rootfs,
      origin,
      async start(slot, { kernelArguments }) {
        const commandLine = kernelCommandLine(host.accelerator, slot.guest, kernelArguments);
        return startEngine(host, { slot, resources, start: { kind: 'boot', commandLine }, files }, signal);
      },
      async go() {},
      accepts: (agent, attempt, tookMs) => hasTimers(host, agent, { attempt, tookMs, longestMs }, signal),
      channel: { key: UNBORN_KEY, deadlineMs: BOOT_DEADLINE_MS },
    },
    signal,
  );
}

/**
 * Boots the disk of a capture, whatever memory it has. Throws `conflict` when the root file system below it is not on this
 * host.
 */
export async function rebootMachine(
  deps: MachineDeps,
  snapshot: StoredSnapshot,
  use: MachineUse,
  signal?: AbortSignal,
): Promise<Machine> {
  const { resources } = snapshot.manifest;
  const rootfs = await capturedRootfs(deps.host.artifacts, snapshot.manifest);
  return bootMachine(deps, { rootfs, resources, use, disk: diskFiles(snapshot), longestMs: SLOW_BOOT_MS }, signal);
}

/** A captured guest; it is still the captured generation when it goes on. */
export function capturedGuest(snapshot: StoredSnapshot, rootfs: RootFilesystem): GuestPlan {
  const { resources, channelKey } = snapshot.manifest;
  return {
    resources,
    rootfs,
    origin: snapshotFiles(snapshot),
    go: (engine, running) => engine.qmp.execute('cont', {}, {}, running),
    channel: { key: Buffer.from(channelKey, 'hex'), deadlineMs: RESTORE_DEADLINE_MS },
  };
}

/** Restores a capture; resolves when the guest runs and its agent answers. It is still the captured generation. */
export async function restoreMachine(
  deps: MachineDeps,
  snapshot: StoredSnapshot,
  use: MachineUse,
  signal?: AbortSignal,
): Promise<Machine> {
  const { resources } = snapshot.manifest;
  const rootfs = await capturedRootfs(deps.host.artifacts, snapshot.manifest);
  const start = (slot: NetworkSlot) => restoreEngine(deps.host, snapshot, { resources, rootfs, slot }, signal);
  return assemble(deps, { ...capturedGuest(snapshot, rootfs), use, start, accepts: async () => true }, signal);
}

/**
 * Takes over the machine of a former server: its guest runs afterwards, even if it was stopped for a capture. Rejects when
 * it cannot go on; what is left of it then is removed with the other leftovers.
 */
export async function adoptMachine(
  { host, slots }: MachineDeps,
  known: KnownInstance,
  identity: MachineIdentity,
): Promise<Machine> {
  const { resources, network, channelKey: key } = known;
  const { rootfs, origin, fingerprint } = identity;
  await using undo = new AsyncDisposableStack();
  const slot = await slots.adopt(identity.slot, network);
  undo.defer(() => slot.release());
  if (slot.uid !== identity.uid || slot.hostInteractionIp !== identity.hostInteractionIp) {
    throw new PlatformError('conflict', 'the addresses or users of network slots were configured differently then');
  }
  const visit = createSlotVisit();
  undo.defer(() => visit.end());
  const engine = undo.use(await adoptEngine(host, { identity, resources, wanted: known.wanted }));
  const agent = await whileRunning(engine, undefined, async (running) => {
    await engine.qmp.execute('cont', {}, {}, running);
    return connectAgent(host, engine, slot, { key, deadlineMs: ADOPTION_DEADLINE_MS }, running);
  });
  undo.use(agent);
  // One that was quiesced for a capture thaws only now.
  await agent.activate({ ...keptActivation(known), resetStreams: false });
  // Only what goes on is told of its end by this server.
  visit.takeOver(known);
  const facts = { resources, rootfs, origin, fingerprint };
  return machineOf({ host, slot, visit, engine, agent, facts, release: undo.move() });
}
