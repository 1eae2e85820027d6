import { DEFAULT_NETWORK_POLICY } from '@agentenv/core';
import type { LaunchPlan, StoredSnapshot } from '../backend.ts';
import type { PoolEntry } from '../pool/pool.ts';
import { isDefaultPolicy, UnusableInAdvance } from './in-advance.ts';
import { type Machine, type MachineDeps, restoreMachine } from './machine.ts';
import { LOGIN_SHELL, rehearsal, runOnce } from './warm-up.ts';

/**
 * A restored guest that has run a login shell, so that the engine has translated what every first command needs, and was
 * stopped. It belongs to nobody: its keys are its own and its network has the default policy.
 */
export interface WarmMachine extends PoolEntry {
  readonly machine: Machine;
}

export async function makeWarmMachine(
  deps: MachineDeps,
  snapshot: StoredSnapshot,
  signal: AbortSignal,
): Promise<WarmMachine> {
  const { host } = deps;
  await using undo = new AsyncDisposableStack();
  const machine = undo.use(await restoreMachine(deps, snapshot, { network: DEFAULT_NETWORK_POLICY }, signal));
  const { agent, engine } = machine;
  await agent.activate(rehearsal(machine.slot.guest, engine.identity.uuid, host.rng), signal);
  await runOnce(agent, LOGIN_SHELL, host.log, signal);
  await engine.qmp.execute('stop', {}, {}, signal);
  undo.move();
  return { machine, lost: machine.ended, [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose]() };
}

/**
 * Lets a claimed guest go on: its policy is in force and its slot prepared before it does. The caller activates it for its
 * sandbox. Throws `UnusableInAdvance` when another machine may be tried.
 */
export async function wakeMachine(
  machine: Machine,
  plan: Pick<LaunchPlan, 'network' | 'beforeStart' | 'afterStop'>,
  signal: AbortSignal,
): Promise<void> {
  const { network: policy } = plan;
  let told = false;
  try {
    if (!isDefaultPolicy(policy)) await machine.slot.applyPolicy(policy);
    told = plan.beforeStart !== undefined;
    await machine.prepareSlot(plan, signal);
    await machine.engine.qmp.execute('cont', {}, {}, signal);
  } catch (caught) {
    if (told || signal.aborted) throw caught;
    throw new UnusableInAdvance('a pool entry could not be used', { cause: caught });
  }
}
