import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { Sandbox } from 'e2b';
import type { TestServer } from '../../e2e/lib/server.ts';
import type { Bench, Measured } from '../lib/row.ts';
import { benchServer, NO_POOL } from '../lib/session.ts';

const COUNT = 4;
const DIRTY_MIB = 256;
/** Between two looks at the clock; part of every delay in the histograms. */
const RESOLUTION_MS = 10;
const P99_MS = 20;
const MAX_MS = 100;
const FILL = `mount -o remount,size=90% /dev/shm && head -c ${DIRTY_MIB}M /dev/zero | tr '\\0' x > /dev/shm/dirty`;

/** A thread with nothing to do: how late it is, the host is. */
const IDLE_THREAD = `
  const { parentPort } = require('node:worker_threads');
  const delay = require('node:perf_hooks').monitorEventLoopDelay({ resolution: ${RESOLUTION_MS} });
  delay.enable();
  parentPort.on('message', () => {
    parentPort.postMessage({ p99: delay.percentile(99) / 1e6 - ${RESOLUTION_MS}, max: delay.max / 1e6 - ${RESOLUTION_MS} });
    delay.reset();
  });
`;

/** Milliseconds an event loop was late since this was last asked. */
interface Delay {
  readonly p99: number;
  readonly max: number;
}

async function idleDelay(idle: Worker): Promise<Delay> {
  idle.postMessage('tell');
  const [delay] = (await once(idle, 'message')) as [Delay];
  return delay;
}

async function eventLoopDelay(server: TestServer): Promise<Delay> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const quantile = (name: string): number => {
    const found = new RegExp(`^agentenv_event_loop_delay_seconds\\{quantile="${name}"\\} (\\S+)$`, 'm').exec(text);
    if (found === null) throw new Error(`no event loop delay in the metrics of the server, quantile ${name}`);
    return Number(found[1]) * 1000 - RESOLUTION_MS;
  };
  return { p99: quantile('0.99'), max: quantile('1') };
}

/** The main thread stays free while captures are copied, hashed and synchronised. */
export const eventLoop: Bench = {
  name: 'event-loop',
  what: `delay of the server's event loop while ${COUNT} sandboxes of ${DIRTY_MIB} MiB are paused at once`,
  async run({ progress, effort }) {
    await using server = await benchServer(NO_POOL);
    const sandboxes: Sandbox[] = [];
    for (let index = 0; index < COUNT; index++) {
      const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 3_600_000 });
      await sandbox.commands.run(FILL, { user: 'root', timeoutMs: 0 });
      sandboxes.push(sandbox);
    }
    await using stack = new AsyncDisposableStack();
    const idle = stack.adopt(new Worker(IDLE_THREAD, { eval: true }), async (thread) => {
      await thread.terminate();
    });
    const served: Delay[] = [];
    const idled: Delay[] = [];
    for (let round = 0; round < Math.max(2, Math.round(5 * effort)); round++) {
      progress(`round ${round + 1}`);
      await Promise.all([eventLoopDelay(server), idleDelay(idle)]);
      await Promise.all(sandboxes.map((sandbox) => sandbox.pause()));
      served.push(await eventLoopDelay(server));
      idled.push(await idleDelay(idle));
      for (const sandbox of sandboxes) await sandbox.connect();
    }
    await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
    const row = (what: keyof Delay, limit: number): Measured => {
      const samples = served.map((delay) => delay[what]);
      return {
        name: `event loop delay ${what}, ${COUNT} × ${DIRTY_MIB} MiB paused at once`,
        unit: 'ms',
        samples,
        floor: idled.map((delay) => delay[what]),
        budget: `≤ ${limit} ms`,
        ok: ({ p50 }) => (what === 'max' ? Math.max(...samples) : p50) <= limit,
      };
    };
    return [row('p99', P99_MS), row('max', MAX_MS)];
  },
};
