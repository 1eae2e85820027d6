import { type CaptureKind, PlatformError, type SnapshotManifest } from '@agentenv/core';
import type { CapturedSnapshot, RunningSandbox } from '../backend.ts';
import { createFakeAgent } from './agent.ts';
import type { FakeMachine, FakeWorld } from './world.ts';

type Phase = 'running' | 'frozen' | 'held' | 'ended';

export interface FakeRunningDeps {
  readonly world: FakeWorld;
  readonly machine: FakeMachine;
  readonly writeSnapshot: (directory: string, contents: CaptureKind) => Promise<SnapshotManifest>;
  /** The slot is given back; called as soon as the machine has ended. */
  readonly releaseSlot: () => Promise<void>;
  readonly onGone: () => void;
}

/** One running generation of the fake backend. */
export function createFakeRunning(deps: FakeRunningDeps): RunningSandbox {
  const { world, machine, writeSnapshot, onGone } = deps;
  const { guest, instanceId } = machine;
  const holder = {};
  machine.holder = holder;
  const agent = createFakeAgent(guest);
  let phase: Phase = 'running';
  let stopping: Promise<void> | undefined;

  const ended = machine.ended.then((end) => {
    phase = 'ended';
    onGone();
    return end;
  });

  // A server that is gone gives nothing back: what it had is the next one's.
  const released = ended.then(() => (machine.holder === holder ? deps.releaseSlot() : undefined));

  function expectPhase(expected: Phase, operation: string): void {
    if (phase === expected) return;
    throw new PlatformError('conflict', `cannot ${operation}: the generation is ${phase}`);
  }

  async function end(): Promise<void> {
    await world.faults.pass('stop');
    machine.end('stopped', 'stopped by the server');
    await agent[Symbol.asyncDispose]();
    await released;
  }

  async function capture(
    directory: string,
    contents: CaptureKind,
    signal: AbortSignal | undefined,
  ): Promise<CapturedSnapshot> {
    expectPhase('running', 'capture');
    signal?.throwIfAborted();
    phase = 'held';
    guest.stop();
    try {
      await world.faults.pass('capture', signal);
      const manifest = await writeSnapshot(directory, contents);
      signal?.throwIfAborted();
      if (world.machines.get(instanceId) !== machine) throw new PlatformError('sandbox_unavailable', 'it ended');
      return { manifest, async release() {} };
    } catch (error) {
      if (phase === 'held') {
        phase = 'running';
        guest.go();
      }
      throw PlatformError.fromUnknown(error, 'the capture failed');
    }
  }

  const sandbox: RunningSandbox = {
    instanceId,
    identity: { backend: 'fake', engine: machine.engine, instanceId },
    agent,
    ended,
    async freeze() {
      expectPhase('running', 'freeze');
      phase = 'frozen';
      guest.stop();
    },
    async thaw() {
      expectPhase('frozen', 'thaw');
      phase = 'running';
      guest.go();
    },
    capture: (directory, signal) => capture(directory, 'full', signal),
    captureDisk: (directory, signal) => capture(directory, 'disk', signal),
    async snapshot(directory, signal) {
      const captured = await capture(directory, 'full', signal);
      try {
        await sandbox.release();
      } catch (error) {
        machine.end('channel-lost', 'it did not go on after it was captured');
        throw new PlatformError('sandbox_unavailable', 'the sandbox ended while it was captured', { cause: error });
      }
      return captured;
    },
    async release() {
      expectPhase('held', 'release');
      await world.faults.pass('release');
      phase = 'running';
      guest.go();
    },
    async applyNetwork(policy, signal) {
      if (phase === 'ended') throw new PlatformError('sandbox_unavailable', 'the sandbox has ended');
      await world.faults.pass('network');
      signal?.throwIfAborted();
      machine.policy = policy;
    },
    stop() {
      stopping ??= end().catch((error: unknown) => {
        // A failed stop may be tried again.
        stopping = undefined;
        throw PlatformError.fromUnknown(error, 'the stop failed');
      });
      return stopping;
    },
    [Symbol.asyncDispose]: () => sandbox.stop(),
  };
  return sandbox;
}
