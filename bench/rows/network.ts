import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_ALWAYS_DENIED, DEFAULT_NETWORK_POLICY, type NetworkPolicy, SILENT_LOG } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { waitUntil } from '../../e2e/lib/wait.ts';
import { createExec } from '../../packages/runtime/src/exec.ts';
import type { NetworkSlots } from '../../packages/runtime/src/network/slot.ts';
import { createNetworkSlots } from '../../packages/runtime/src/network/slots.ts';
import type { Bench, BenchContext, Measured } from '../lib/row.ts';
import { repeat, timed } from '../lib/session.ts';

const AT_ONCE = 50;
const POOL = { low: 4, high: 16 };
const RULES = 100;
const POLL_MS = 5;
const REFILL_DEADLINE_MS = 120_000;

/** A policy with that many rules of each family and list. */
function policyOf(rules: number): NetworkPolicy {
  const list = (base4: string, base6: string) =>
    Array.from({ length: rules }, (_, index) => [`${base4}.${index}`, `${base6}::${index.toString(16)}`]).flat();
  return {
    ...DEFAULT_NETWORK_POLICY,
    allowOut: list('198.51.100', '2001:db8:1'),
    denyOut: list('203.0.113', '2001:db8:2'),
  };
}

async function full(slots: NetworkSlots): Promise<void> {
  const what = 'the pool of network slots to be full';
  await waitUntil(() => slots.status().ready >= POOL.high, { timeout: REFILL_DEADLINE_MS, what, interval: POLL_MS });
}

async function run({ progress, effort }: BenchContext): Promise<readonly Measured[]> {
  const clock = createRealClock();
  const exec = createExec({ clock });
  const runtimeDir = await mkdtemp(join(tmpdir(), 'aenv-bench-net-'));
  await using stack = new AsyncDisposableStack();
  stack.defer(() => rm(runtimeDir, { recursive: true, force: true }));
  const open = (prefix: string, pool: typeof POOL) =>
    createNetworkSlots({
      ...{ runtimeDir, prefix, exec, clock, log: SILENT_LOG, uplink: 'none', uidBase: 61_000, pool },
      dnsServers: ['198.51.100.53'],
      alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
    });

  progress('policy updates');
  const slots = stack.use(await open('bench', POOL));
  const slot = await slots.acquire(DEFAULT_NETWORK_POLICY);
  await full(slots);
  const samples = Math.max(20, Math.round(100 * effort));
  const floor: number[] = [];
  const policies = [policyOf(0), policyOf(2)];
  let turn = 0;
  const small = await repeat(samples, async () => {
    const argv = ['nsenter', `--net=${slot.networkNamespacePath}`, 'nft', '-f', '-'] as const;
    floor.push((await timed(() => exec({ argv: [...argv], stdin: '\n', deadlineMs: 10_000 }))).ms);
    const policy = policies[turn++ % policies.length] ?? DEFAULT_NETWORK_POLICY;
    return (await timed(() => slot.applyPolicy(policy))).ms;
  });
  const large = await repeat(samples, async () => (await timed(() => slot.applyPolicy(policyOf(RULES)))).ms);
  await slot.release();
  await full(slots);

  progress('one slot alone');
  const bare = stack.use(await open('alone', { low: 0, high: 0 }));
  const alone = await repeat(10, async () => {
    const { value, ms } = await timed(() => bare.acquire(DEFAULT_NETWORK_POLICY));
    await value.release();
    return ms;
  });

  const served: number[] = [];
  const refilled: number[] = [];
  for (let round = 0; round < Math.max(3, Math.round(5 * effort)); round++) {
    progress(`${AT_ONCE} creates at once, round ${round + 1}`);
    await full(slots);
    const started = performance.now();
    const taken = await Promise.all(Array.from({ length: AT_ONCE }, () => slots.acquire(DEFAULT_NETWORK_POLICY)));
    served.push(performance.now() - started);
    await full(slots);
    refilled.push(performance.now() - started);
    await Promise.all(taken.map((each) => each.release()));
  }
  // What the pool does not hold has to be made; the last one waits for all of them.
  const made = alone.map((ms) => ms * (AT_ONCE - POOL.high));
  const filled = alone.map((ms) => ms * AT_ONCE);
  return [
    {
      ...{
        name: 'network policy update, no or few rules, beside an empty transaction',
        unit: 'ms',
        samples: small,
        floor,
      },
      budget: '≤ 2 × floor',
      ok: ({ p50, floor: empty }) => p50 <= 2 * empty,
    },
    {
      ...{
        name: `network policy update, ${4 * RULES} rules, beside an empty transaction`,
        unit: 'ms',
        samples: large,
        floor,
      },
      budget: '≤ 4 × floor',
      ok: ({ p50, floor: empty }) => p50 <= 4 * empty,
    },
    {
      name: `network slots: ${AT_ONCE} creates at once, a pool of ${POOL.high}, all served`,
      ...{ unit: 'ms', samples: served, floor: made },
      budget: `≤ floor (${AT_ONCE - POOL.high} × one alone)`,
      ok: ({ p50, floor: serial }) => p50 <= serial,
    },
    {
      name: `network slots: ${AT_ONCE} creates at once, the pool full again`,
      ...{ unit: 'ms', samples: refilled, floor: filled },
      budget: `≤ floor (${AT_ONCE} × one alone)`,
      ok: ({ p50, floor: serial }) => p50 <= serial,
    },
  ];
}

/** What a replacement of a policy takes, and what a burst of creates does to the pool of network slots. */
export const network: Bench = {
  name: 'network',
  what: 'replacing a network policy beside an empty nft transaction; 50 slots taken at once beside one alone',
  run,
};
