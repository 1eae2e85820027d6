import { PlatformError } from '@agentenv/core';
import { activationFor } from '../activation.ts';
import type { LaunchPlan, RunningSandbox, RuntimeEnd, StoredSnapshot } from '../backend.ts';
import type { Exec } from '../exec.ts';
import { captureEngine } from './capture.ts';
import type { ClockKeeper } from './clock-keeper.ts';
import type { EngineHost } from './engine-host.ts';
import type { Machine } from './machine.ts';

/** Time a quiesced guest waits for its capture before it goes on by itself. */
const QUIESCE_LEASE_MS = 5_000;

type Phase = 'running' | 'frozen' | 'held' | 'ended';

export interface RunningVmDeps {
  readonly host: EngineHost;
  readonly machine: Machine;
  readonly plan: LaunchPlan;
  readonly exec: Exec;
  readonly clocks: ClockKeeper;
  /** A capture this server made itself. */
  readonly onCaptured: (snapshot: StoredSnapshot) => Promise<void>;
  /** Everything the generation held is gone. */
  readonly onGone: () => void;
}

/** A virtual machine as somebody's sandbox. Whoever ends it, its resources are released at once. */
export function createRunningVm(deps: RunningVmDeps): RunningSandbox {
  const { host, machine, plan, exec } = deps;
  const { engine, agent, slot } = machine;
  const log = host.log.child({ sandbox: plan.sandboxId, engine: engine.identity.name });
  const end = Promise.withResolvers<RuntimeEnd>();
  let phase: Phase = 'running';
  let releasing: Promise<void> | undefined;
  const clock = deps.clocks.keep({ agent, running: () => phase === 'running', log });

  function expectPhase(expected: Phase, operation: string): void {
    if (phase === 'ended') throw new PlatformError('sandbox_unavailable', 'the sandbox has ended');
    if (phase !== expected) throw new PlatformError('conflict', `cannot ${operation}: the sandbox is ${phase}`);
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
    .then((how) => finish(how))
    .catch((error: unknown) => {
      log.error({ error }, 'the resources of an ended sandbox could not be released');
    });

  /** After a capture, or one that failed: the same generation goes on. */
  async function goOn(): Promise<void> {
    await engine.qmp.execute('cont');
    await agent.activate({ ...activationFor(plan, slot.guest), resetStreams: false });
  }

  /** Lets the guest go on after a failed capture and answers its error; one that cannot go on is of no use to anybody. */
  async function recover(failure: unknown): Promise<PlatformError> {
    try {
      await goOn();
      if (phase === 'held') phase = 'running';
      return PlatformError.fromUnknown(failure, 'the capture failed');
    } catch (caught) {
      const { message } = PlatformError.fromUnknown(caught);
      await finish({ reason: 'channel-lost', detail: `the guest did not go on after a failed capture: ${message}` });
      return new PlatformError('sandbox_unavailable', 'the sandbox ended while it was captured', { cause: failure });
    }
  }

  async function hold(directory: string, signal: AbortSignal | undefined): Promise<StoredSnapshot> {
    await agent.quiesce(QUIESCE_LEASE_MS, signal);
    await engine.qmp.execute('stop', {}, {}, signal);
    const { resources, rootfs, origin } = machine;
    const source = { engine, resources, rootfs, origin, channelKey: plan.channelKey };
    return captureEngine(host, source, directory, exec, signal);
  }

  const sandbox: RunningSandbox = {
    instanceId: plan.instanceId,
    identity: { ...engine.identity, backend: 'qemu', slot: slot.index },
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
    async capture(directory, signal) {
      expectPhase('running', 'capture');
      signal?.throwIfAborted();
      phase = 'held';
      let snapshot: StoredSnapshot;
      try {
        snapshot = await hold(directory, signal);
      } catch (caught) {
        throw await recover(caught);
      }
      await deps.onCaptured(snapshot);
      return { manifest: snapshot.manifest, async release() {} };
    },
    async release() {
      expectPhase('held', 'release');
      await goOn();
      phase = 'running';
    },
    async applyNetwork(policy) {
      if (phase === 'ended') throw new PlatformError('sandbox_unavailable', 'the sandbox has ended');
      await slot.applyPolicy(policy);
    },
    stop: () => finish({ reason: 'stopped', detail: 'stopped by the server' }),
    [Symbol.asyncDispose]: () => sandbox.stop(),
  };
  return sandbox;
}
