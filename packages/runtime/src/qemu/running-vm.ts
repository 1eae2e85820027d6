import { type CaptureKind, type InstanceId, PlatformError } from '@agentenv/core';
import { keptActivation } from '../activation.ts';
import type { CapturedSnapshot, LaunchPlan, RunningSandbox, RuntimeEnd, StoredSnapshot } from '../backend.ts';
import type { Exec } from '../exec.ts';
import { BACKEND_NAME, captureEngine } from './capture.ts';
import type { ClockKeeper } from './clock-keeper.ts';
import type { EngineHost } from './engine-host.ts';
import type { MachineIdentity } from './engine-identity.ts';
import type { Machine } from './machine.ts';

/** Time a quiesced guest waits for its capture before it goes on by itself. */
const QUIESCE_LEASE_MS = 5_000;
/** The lease began before its answer was here. */
const LEASE_MARGIN_MS = 1_000;

type Phase = 'running' | 'frozen' | 'held' | 'ended';

export interface RunningVmDeps {
  readonly host: EngineHost;
  readonly machine: Machine;
  readonly plan: Pick<LaunchPlan, 'sandboxId' | 'instanceId' | 'channelKey'>;
  readonly exec: Exec;
  readonly clocks: ClockKeeper;
  /** A capture this server made itself. */
  readonly onCaptured: (snapshot: StoredSnapshot) => Promise<void>;
  /** Everything the generation held is gone. */
  readonly onGone: () => void;
}

export interface RunningVm extends RunningSandbox {
  /** Lets go of it; the guest runs on for the next server. */
  abandon(): Promise<void>;
}

function identityOf(instanceId: InstanceId, machine: Machine): MachineIdentity {
  const { engine, slot, rootfs, origin, fingerprint } = machine;
  return {
    ...engine.identity,
    backend: BACKEND_NAME,
    instanceId,
    slot: slot.index,
    ...{ uid: slot.uid, hostInteractionIp: slot.hostInteractionIp, rootfs, fingerprint },
    origin: origin === undefined ? undefined : { memory: origin.memory, disk: origin.disk },
  };
}

/** A virtual machine as somebody's sandbox. Whoever ends it, its resources are released at once. */
export function createRunningVm(deps: RunningVmDeps): RunningVm {
  const { host, machine, plan, exec } = deps;
  const { engine, agent, slot } = machine;
  const log = host.log.child({ sandbox: plan.sandboxId, engine: engine.identity.name });
  const end = Promise.withResolvers<RuntimeEnd>();
  let phase: Phase = 'running';
  /** A capture of a guest that goes on already is still being written. */
  let settling = false;
  let abandoned = false;
  /** When a capture last stopped the frozen guest. */
  let stoppedAt = 0;
  let releasing: Promise<void> | undefined;
  const clock = deps.clocks.keep({ agent, running: () => phase === 'running', log });

  function expectPhase(expected: Phase, operation: string): void {
    if (phase === 'ended') throw new PlatformError('sandbox_unavailable', 'the sandbox has ended');
    if (phase !== expected) throw new PlatformError('conflict', `cannot ${operation}: the sandbox is ${phase}`);
  }

  function goesOn(): boolean {
    return phase === 'running' || phase === 'frozen';
  }

  async function releaseAll(): Promise<void> {
    await machine[Symbol.asyncDispose]();
    deps.onGone();
  }

  function finish(how: RuntimeEnd): Promise<void> {
    if (phase !== 'ended') {
      phase = 'ended';
      clock[Symbol.dispose]();
      log.info({ reason: how.reason, detail: how.detail }, 'the virtual machine ended');
      end.resolve(how);
    }
    releasing ??= releaseAll().catch((error: unknown) => {
      // What could not be released may be tried again by the next stop.
      releasing = undefined;
      throw PlatformError.fromUnknown(error, 'the resources of the sandbox could not be released');
    });
    return releasing;
  }

  void machine.ended
    .then((how) => (abandoned ? undefined : finish(how)))
    .catch((error: unknown) => {
      log.error({ error }, 'the resources of an ended sandbox could not be released');
    });

  /** After a capture, or one that failed: the same generation goes on. */
  async function goOn(): Promise<void> {
    await engine.qmp.execute('cont');
    // It is who it was: files its owner may have changed since are left alone.
    await agent.activate({ ...keptActivation(plan), resetStreams: false });
  }

  /** Lets the guest go on after a failed capture and answers its error; one that cannot go on is of no use to anybody. */
  async function recover(failure: unknown): Promise<PlatformError> {
    // The next server has it go on; what failed here may be no more than that this one let go of it.
    const left = (): PlatformError => PlatformError.fromUnknown(failure, 'the capture failed');
    if (abandoned) return left();
    try {
      await goOn();
      if (phase === 'held') phase = 'running';
      return left();
    } catch (caught) {
      if (abandoned) return left();
      const { message } = PlatformError.fromUnknown(caught);
      await finish({ reason: 'channel-lost', detail: `the guest did not go on after a failed capture: ${message}` });
      return new PlatformError('sandbox_unavailable', 'the sandbox ended while it was captured', { cause: failure });
    }
  }

  async function hold(
    directory: string,
    contents: CaptureKind,
    signal: AbortSignal | undefined,
    onCopied?: () => Promise<void>,
  ): Promise<StoredSnapshot> {
    if (contents === 'disk') await agent.settle(QUIESCE_LEASE_MS, signal);
    else await agent.quiesce(QUIESCE_LEASE_MS, signal);
    stoppedAt = host.clock.monotonic();
    await engine.qmp.execute('stop', {}, {}, signal);
    // What its processes wrote after they thawed by themselves would be lost with the memory.
    if (contents === 'disk' && host.clock.monotonic() - stoppedAt > QUIESCE_LEASE_MS - LEASE_MARGIN_MS) {
      throw new PlatformError('deadline_exceeded', 'the guest was not stopped before it went on by itself');
    }
    const { resources, rootfs, origin, fingerprint } = machine;
    const source = { contents, engine, resources, rootfs, origin, fingerprint, channelKey: plan.channelKey };
    const early = onCopied === undefined ? {} : { onCopied };
    return captureEngine(host, { ...source, ...early }, directory, exec, signal);
  }

  /** Captures into `directory`; the guest is held afterwards unless `onCopied` lets it go on, and runs after a failure. */
  async function capture(
    directory: string,
    contents: CaptureKind,
    signal: AbortSignal | undefined,
    onCopied?: () => Promise<void>,
  ): Promise<CapturedSnapshot> {
    expectPhase('running', 'capture');
    if (settling) throw new PlatformError('conflict', 'cannot capture: another capture is being written');
    signal?.throwIfAborted();
    phase = 'held';
    settling = true;
    try {
      const snapshot = await hold(directory, contents, signal, onCopied);
      await deps.onCaptured(snapshot);
      return { manifest: snapshot.manifest, async release() {} };
    } catch (caught) {
      if (goesOn()) throw PlatformError.fromUnknown(caught, 'the capture failed');
      throw await recover(caught);
    } finally {
      settling = false;
      // One that is held is about to be stopped. A capture that failed has frozen a layer too.
      if (goesOn()) engine.compact();
    }
  }

  const sandbox: RunningVm = {
    instanceId: plan.instanceId,
    identity: identityOf(plan.instanceId, machine),
    agent,
    ended: end.promise,
    async freeze() {
      expectPhase('running', 'freeze');
      phase = 'frozen';
      await engine.qmp.execute('stop');
    },
    async thaw() {
      expectPhase('frozen', 'thaw');
      await engine.qmp.execute('cont');
      phase = 'running';
      await agent.setClock();
    },
    capture: (directory, signal) => capture(directory, 'full', signal),
    captureDisk: (directory, signal) => capture(directory, 'disk', signal),
    snapshot: (directory, signal) =>
      capture(directory, 'full', signal, async () => {
        await goOn();
        if (phase === 'held') phase = 'running';
        log.info({ heldMs: host.clock.monotonic() - stoppedAt }, 'the sandbox goes on after its snapshot was copied');
      }),
    async release() {
      expectPhase('held', 'release');
      await goOn();
      phase = 'running';
      engine.compact();
    },
    async applyNetwork(policy, signal) {
      if (phase === 'ended') throw new PlatformError('sandbox_unavailable', 'the sandbox has ended');
      await slot.applyPolicy(policy, signal);
    },
    async abandon() {
      if (phase === 'ended') return;
      abandoned = true;
      clock[Symbol.dispose]();
      await machine.abandon();
    },
    stop: () => finish({ reason: 'stopped', detail: 'stopped by the server' }),
    [Symbol.asyncDispose]: () => sandbox.stop(),
  };
  return sandbox;
}
