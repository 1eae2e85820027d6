import { setTimeout as delay } from 'node:timers/promises';
import { Sandbox } from 'e2b';
import { engines, ledgerIds, residentBytes } from '../../e2e/lib/host.ts';
import type { TestServer } from '../../e2e/lib/server.ts';
import { waitUntil } from '../../e2e/lib/wait.ts';
import { type Bench, figure, type Measured } from '../lib/row.ts';
import { benchServer, NO_POOL, timed } from '../lib/session.ts';

const MIB = 2 ** 20;
const SANDBOXES = 20;
const STREAMS = 1_000;
const EXECS = 200;
/** Streams opened at a time: every one is a process that an emulated guest has to start. */
const OPENING = 40;

/** Runs `work` for every item, at most `width` at a time. */
async function inParallel<T>(items: readonly T[], width: number, work: (item: T) => Promise<void>): Promise<void> {
  const queue = items.values();
  await Promise.all(
    Array.from({ length: width }, async () => {
      for (const item of queue) await work(item);
    }),
  );
}

/** Answers of 500 and above since the server started, but those of `/health`, which is 503 until it can serve; tells which. */
async function serverErrors(server: TestServer, progress: (text: string) => void): Promise<number> {
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  const counts = metrics.matchAll(/^agentenv_http_request_duration_seconds_count(\{[^}]*status="5xx"[^}]*\}) (\d+)/gm);
  let sum = 0;
  for (const [, labels, count] of counts) {
    if (labels?.includes('operation="getHealth"') === true) continue;
    if (Number(count) > 0) progress(`${count} answers of 5xx: ${labels}`);
    sum += Number(count);
  }
  return sum;
}

const none = (name: string, samples: readonly number[]): Measured => ({
  name,
  unit: 'count',
  samples,
  floor: undefined,
  budget: '0',
  ok: ({ p99 }) => p99 === 0,
});

/** Many streams that say nothing, and many commands at once, over twenty sandboxes. */
export const streams: Bench = {
  name: 'streams',
  what: `${STREAMS} idle streams and ${EXECS} commands at once over ${SANDBOXES} sandboxes: errors, latency, memory of the server`,
  async run({ progress, effort }) {
    const perSandbox = Math.max(2, Math.round((STREAMS / SANDBOXES) * Math.min(1, effort)));
    const execs = Math.max(SANDBOXES, Math.round(EXECS * Math.min(1, effort)));
    // Each stream and each command takes a connection; the SDK opens 200 at most unless it is told so.
    process.env.E2B_ENVD_RPC_CONNECTIONS = String(2 * (STREAMS + EXECS));
    await using server = await benchServer(NO_POOL);
    const sandboxes: Sandbox[] = [];
    for (let index = 0; index < SANDBOXES; index++) {
      sandboxes.push(await Sandbox.create('base', { ...server.sdk, timeoutMs: 3_600_000 }));
    }
    const before = residentBytes(server.pid) / MIB;
    let failures = 0;
    const failed = (error: unknown): void => {
      failures += 1;
      progress(String(error));
    };

    const open = sandboxes.flatMap((sandbox) => Array.from({ length: perSandbox }, () => sandbox));
    let opened = 0;
    await inParallel(open, OPENING, async (sandbox) => {
      await sandbox.commands
        .run('sleep infinity', { background: true, timeoutMs: 0, requestTimeoutMs: 0 })
        .catch(failed);
      opened += 1;
      if (opened % 200 === 0) progress(`${opened} streams`);
    });
    await delay(5_000);
    const idle = residentBytes(server.pid) / MIB;

    const gets: number[] = [];
    const latencies: number[] = [];
    let running = true;
    const watching = (async () => {
      while (running) {
        const { value, ms } = await timed(() => server.api(`/sandboxes/${sandboxes[0]?.sandboxId}`));
        await value.text();
        gets.push(ms);
        await delay(50);
      }
    })();
    await Promise.all(
      Array.from({ length: execs }, async (_, index) => {
        const sandbox = sandboxes[index % SANDBOXES];
        const asked = performance.now();
        const result = await sandbox?.commands
          .run(`echo ${index}`, { timeoutMs: 0, requestTimeoutMs: 0 })
          .catch(failed);
        if (result !== undefined && result.stdout !== `${index}\n`) failed(new Error(`wrong output: ${result.stdout}`));
        latencies.push(performance.now() - asked);
      }),
    );
    running = false;
    await watching;
    const peak = residentBytes(server.pid) / MIB;
    const errors = await serverErrors(server, progress);
    await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
    return [
      none(`${open.length} idle streams, ${execs} commands: failures`, [failures]),
      none('answers of 5xx', [errors]),
      figure(`${execs} commands at once`, 'ms', latencies),
      {
        name: 'GET meanwhile',
        unit: 'ms',
        samples: gets,
        floor: undefined,
        budget: 'p99 ≤ 50 ms',
        ok: ({ p99 }) => p99 <= 50,
      },
      figure('server before', 'MiB RSS', [before]),
      figure(`server with ${open.length} idle streams`, 'MiB RSS', [idle]),
      figure('server after the commands', 'MiB RSS', [peak]),
    ];
  },
};

/** Workers of the soak: more than the host has cores. */
const WORKERS = 4;
const SOAK_MINUTES = 10;
/** What a server may gain between its fourth minute and its last, MiB; its heap is collected in steps. */
const GROWTH_LIMIT = 24;

/** Create, run, kill, as fast as the host allows, for ten minutes. */
export const soak: Bench = {
  name: 'soak',
  what: `create → command → kill by ${WORKERS} workers for ${SOAK_MINUTES} minutes: errors, growth of the server, leftovers`,
  async run({ progress, effort }) {
    const minutes = Math.max(1, SOAK_MINUTES * Math.min(1, effort));
    await using server = await benchServer();
    const until = performance.now() + minutes * 60_000;
    const cycles: number[] = [];
    const memory: number[] = [];
    let failures = 0;
    const work = async (): Promise<void> => {
      while (performance.now() < until) {
        const { ms } = await timed(async () => {
          try {
            const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 300_000 });
            try {
              const { stdout } = await sandbox.commands.run('echo alive', { timeoutMs: 0 });
              if (stdout !== 'alive\n') throw new Error(`wrong output: ${stdout}`);
            } finally {
              await sandbox.kill();
            }
          } catch (error) {
            failures += 1;
            progress(String(error));
          }
        });
        cycles.push(ms);
      }
    };
    const sample = async (): Promise<void> => {
      while (performance.now() < until) {
        await delay(10_000);
        memory.push(residentBytes(server.pid) / MIB);
        if (memory.length % 6 === 0) progress(`${cycles.length} cycles, ${memory.at(-1)?.toFixed(0)} MiB`);
      }
    };
    await Promise.all([sample(), ...Array.from({ length: WORKERS }, work)]);
    const errors = await serverErrors(server, progress);
    // The heap finds its size in the first minutes: what it gains after them would go on.
    const part = (from: number, to: number) => memory.slice(memory.length * from, Math.ceil(memory.length * to));
    const growth = Math.min(...part(0.8, 1)) - Math.min(...part(0.3, 0.5));
    await waitUntil(() => ledgerIds(server).length === 0, { timeout: 30_000, what: 'the last kill' });
    const pid = server.pid;
    const pooled = new Set(engines(server)).size;
    await server.stop();
    const leftovers = engines(server).length + ledgerIds(server).length;
    progress(`${pooled} machines in the pool of process ${pid} at the end`);
    return [
      none(`${cycles.length} cycles of create, command, kill: failures`, [failures]),
      none('answers of 5xx', [errors]),
      none('engines and records left behind', [leftovers]),
      figure('cycle', 'ms', cycles),
      {
        name: `server, growth over ${minutes} minutes`,
        unit: 'MiB RSS',
        samples: [growth],
        floor: undefined,
        budget: `≤ ${GROWTH_LIMIT} MiB`,
        ok: ({ p50 }) => p50 <= GROWTH_LIMIT,
      },
      figure('server', 'MiB RSS', memory),
    ];
  },
};
