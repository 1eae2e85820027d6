import { setTimeout as delay } from 'node:timers/promises';
import { Sandbox } from 'e2b';
import { waitUntil } from '../../e2e/lib/wait.ts';
import type { Bench } from '../lib/row.ts';
import { benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const BURN = 'while :; do :; done';

async function busySandboxes(sdk: Parameters<typeof Sandbox.create>[1], count: number): Promise<Sandbox[]> {
  const sandboxes: Sandbox[] = [];
  for (let index = 0; index < count; index++) {
    const sandbox = await Sandbox.create('base', { ...sdk, timeoutMs: 3_600_000 });
    for (let cpu = 0; cpu < 2; cpu++) await sandbox.commands.run(BURN, { background: true, timeoutMs: 0 });
    sandboxes.push(sandbox);
  }
  return sandboxes;
}

/** The control plane stays quick and punctual while four sandboxes use every core. */
export const busy: Bench = {
  name: 'busy',
  what: 'with 4 busy sandboxes: latency of GET, and how late a timeout fires',
  async run({ progress, effort }) {
    await using server = await benchServer(NO_POOL);
    const [first] = await busySandboxes(server.sdk, 4);
    progress('4 sandboxes burn');
    const gets = await repeat(Math.max(100, Math.round(500 * effort)), async () => {
      const { value, ms } = await timed(() => server.api(`/sandboxes/${first?.sandboxId}`));
      await value.text();
      return ms;
    });
    const late = await repeat(Math.max(3, Math.round(5 * effort)), async () => {
      const mortal = await Sandbox.create('base', { ...server.sdk, timeoutMs: 300_000 });
      const asked = performance.now();
      await mortal.setTimeout(3_000);
      await waitUntil(async () => (await server.api(`/sandboxes/${mortal.sandboxId}`)).status === 404, {
        timeout: 30_000,
        what: 'the timeout',
      });
      return Math.abs(performance.now() - asked - 3_000) / 1000;
    });
    return [
      {
        name: 'GET with 4 busy sandboxes',
        unit: 'ms',
        samples: gets,
        floor: undefined,
        budget: 'p99 ≤ 50 ms',
        ok: ({ p99 }) => p99 <= 50,
      },
      {
        name: 'timeout with 4 busy sandboxes',
        unit: 's late or early',
        samples: late,
        floor: undefined,
        budget: '≤ 1 s',
        ok: ({ p99 }) => p99 <= 1,
      },
    ];
  },
};

/** How far a guest's clock is from the host's after minutes of full load. */
export const clock: Bench = {
  name: 'clock',
  what: 'difference between guest and host clock during 10 minutes of full load',
  async run({ progress, effort }) {
    const minutes = Math.max(1, Math.round(10 * Math.min(1, effort)));
    await using server = await benchServer(NO_POOL);
    const [subject] = await busySandboxes(server.sdk, 2);
    if (subject === undefined) throw new Error('no sandbox');
    const skews: number[] = [];
    for (let minute = 1; minute <= minutes; minute++) {
      await delay(60_000);
      const before = Date.now();
      const { stdout } = await subject.commands.run('date +%s.%N', { timeoutMs: 0 });
      const after = Date.now();
      // The command read its clock somewhere between the two; only what lies outside counts.
      const guest = Number(stdout) * 1000;
      skews.push(Math.max(0, before - guest, guest - after) / 1000);
      progress(`minute ${minute}: ${skews.at(-1)?.toFixed(3)} s`);
    }
    return [
      {
        name: `clock skew, ${minutes} min full load`,
        unit: 's',
        samples: skews,
        floor: undefined,
        budget: '< 1 s',
        ok: ({ p99 }) => p99 < 1,
      },
    ];
  },
};
