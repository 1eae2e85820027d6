import { DEFAULT_NETWORK_POLICY, type NetworkPolicy } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import type { PoolEntry } from '../pool/pool.ts';
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
  const machine = undo.use(await restoreMachine(deps, snapshot, DEFAULT_NETWORK_POLICY, signal));
  const { agent, engine } = machine;
  await agent.activate(rehearsal(machine.slot.guest, engine.identity.uuid, host.rng), signal);
  await runOnce(agent, LOGIN_SHELL, host.log, signal);
  await engine.qmp.execute('stop', {}, {}, signal);
  undo.move();
  return { machine, lost: machine.ended, [Symbol.asyncDispose]: () => machine[Symbol.asyncDispose]() };
}

function isDefault(policy: NetworkPolicy): boolean {
  return JSON.stringify(policy) === JSON.stringify(DEFAULT_NETWORK_POLICY);
}

/** Lets a claimed guest go on; the policy is in force before it does. The caller activates it for its sandbox. */
export async function wakeMachine(machine: Machine, policy: NetworkPolicy, signal?: AbortSignal): Promise<void> {
  if (!isDefault(policy)) await machine.slot.applyPolicy(policy);
  await machine.engine.qmp.execute('cont', {}, {}, signal);
}
