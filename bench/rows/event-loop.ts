import { Sandbox } from 'e2b';
import type { TestServer } from '../../e2e/lib/server.ts';
import type { Bench } from '../lib/row.ts';
import { benchServer, NO_POOL } from '../lib/session.ts';

const COUNT = 8;
const DIRTY_MIB = 64;
const P99_MS = 20;
const MAX_MS = 100;
const FILL = `mount -o remount,size=90% /dev/shm && head -c ${DIRTY_MIB}M /dev/zero | tr '\\0' x > /dev/shm/dirty`;

/** Milliseconds the event loop of the server was late since this was last asked. */
async function eventLoopDelay(server: TestServer): Promise<{ readonly p99: number; readonly max: number }> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const quantile = (name: string): number => {
    const found = new RegExp(`^agentenv_event_loop_delay_seconds\\{quantile="${name}"\\} (\\S+)$`, 'm').exec(text);
    if (found === null) throw new Error(`no event loop delay in the metrics of the server, quantile ${name}`);
    return Number(found[1]) * 1000;
  };
  return { p99: quantile('0.99'), max: quantile('1') };
}

/** The main thread stays free while captures are copied, hashed and synchronised. */
export const eventLoop: Bench = {
  name: 'event-loop',
  what: `delay of the server's event loop while ${COUNT} sandboxes of ${DIRTY_MIB} MiB are paused, resumed and captured at once`,
  async run({ progress, effort }) {
    await using server = await benchServer(NO_POOL);
    const sandboxes: Sandbox[] = [];
    for (let index = 0; index < COUNT; index++) {
      const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 3_600_000 });
      await sandbox.commands.run(FILL, { user: 'root', timeoutMs: 0 });
      sandboxes.push(sandbox);
    }
    const p99: number[] = [];
    const max: number[] = [];
    for (let round = 0; round < Math.max(2, Math.round(5 * effort)); round++) {
      progress(`round ${round + 1}`);
      const snapshots: string[] = [];
      const steps: readonly ((sandbox: Sandbox) => Promise<unknown>)[] = [
        (sandbox: Sandbox) => sandbox.pause(),
        (sandbox: Sandbox) => sandbox.connect(),
        async (sandbox: Sandbox) => snapshots.push((await sandbox.createSnapshot()).snapshotId),
      ];
      for (const step of steps) {
        await eventLoopDelay(server);
        await Promise.all(sandboxes.map(step));
        const delay = await eventLoopDelay(server);
        p99.push(delay.p99);
        max.push(delay.max);
      }
      for (const id of snapshots) await Sandbox.deleteSnapshot(id, server.sdk);
    }
    await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
    const row = { unit: 'ms', floor: undefined } as const;
    return [
      {
        ...row,
        name: `event loop delay p99, ${COUNT} × ${DIRTY_MIB} MiB paused, resumed, captured`,
        samples: p99,
        budget: `≤ ${P99_MS} ms`,
        ok: () => Math.max(...p99) <= P99_MS,
      },
      {
        ...row,
        name: `event loop delay max, ${COUNT} × ${DIRTY_MIB} MiB paused, resumed, captured`,
        samples: max,
        budget: `≤ ${MAX_MS} ms`,
        ok: () => Math.max(...max) <= MAX_MS,
      },
    ];
  },
};
