import { Sandbox } from 'e2b';
import { waitUntil } from '../../e2e/lib/wait.ts';
import { type BareHost, openBareHost } from '../lib/bare.ts';
import type { Bench, BenchContext, Measured } from '../lib/row.ts';
import { ARTIFACTS, benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const LOGIN_SHELL = {
  user: 'user',
  argv: ['/bin/bash', '-l', '-c', 'echo ready'],
  env: {},
  cwd: '',
  defaultCwd: '',
  stdin: false,
  tag: '',
  config: new Uint8Array(),
  killAfterMs: 0,
};

/** Floors: a bare restore until the agent answers, and until its first login shell has printed. */
async function floors(bare: BareHost, samples: number) {
  const ping: number[] = [];
  const output: number[] = [];
  for (let index = 0; index < samples; index++) {
    await using machine = await bare.restore();
    ping.push(machine.pingMs);
    const { ms } = await timed(async () => {
      const child = await machine.agent.spawn(LOGIN_SHELL);
      await new Promise<void>((resolve) => child.onOutput(() => resolve()));
    });
    output.push(machine.pingMs + ms);
  }
  return { ping, output };
}

/** Times API call → 201 and API call → first output of a command through the SDK, one sandbox after another. */
async function creates(
  sdk: Parameters<typeof Sandbox.create>[1],
  samples: number,
  ready: () => Promise<unknown>,
): Promise<{ readonly created: number[]; readonly output: number[] }> {
  const created: number[] = [];
  const output: number[] = [];
  for (let index = 0; index < samples; index++) {
    await ready();
    const start = performance.now();
    const sandbox = await Sandbox.create('base', { ...sdk, timeoutMs: 120_000 });
    created.push(performance.now() - start);
    const first = Promise.withResolvers<void>();
    const running = sandbox.commands.run('echo ready', { onStdout: () => first.resolve() });
    await first.promise;
    output.push(performance.now() - start);
    await running;
    await sandbox.kill();
  }
  return { created, output };
}

async function run({ progress, effort }: BenchContext): Promise<readonly Measured[]> {
  const samples = Math.max(5, Math.round(20 * effort));
  const rows: Measured[] = [];
  let floor: Awaited<ReturnType<typeof floors>>;
  {
    await using server = await benchServer(NO_POOL);
    await using bare = await openBareHost(server.home, ARTIFACTS);
    progress('floor: bare restores');
    floor = await floors(bare, samples);
    progress('cold: no pool');
    const cold = await creates(server.sdk, samples, async () => undefined);
    rows.push(
      {
        name: 'create cold',
        unit: 'ms',
        samples: cold.created,
        floor: floor.ping,
        budget: '≤ 1.5 × floor',
        ok: ({ ratio }) => ratio <= 1.5,
      },
      {
        name: 'create → first output, cold',
        unit: 'ms',
        samples: cold.output,
        floor: floor.output,
        budget: '≤ 1.3 × floor',
        ok: ({ ratio }) => ratio <= 1.3,
      },
    );
  }
  await using server = await benchServer();
  progress('pooled');
  const poolReady = async () => {
    await waitUntil(
      async () => {
        const metrics = await (await fetch(`${server.url}/metrics`)).text();
        return Number(/^agentenv_pool_entries\{kind="ready"\} (\d+)/m.exec(metrics)?.[1] ?? 0) > 0;
      },
      { timeout: 60_000, what: 'a ready machine in the pool' },
    );
  };
  const pooled = await creates(server.sdk, samples, poolReady);
  rows.push(
    {
      name: 'create pooled',
      unit: 'ms',
      samples: pooled.created,
      floor: undefined,
      budget: '≤ 120 ms',
      ok: ({ p50 }) => p50 <= 120,
    },
    {
      name: 'create → first output, pooled',
      unit: 'ms',
      samples: pooled.output,
      floor: floor.output,
      budget: '≤ 1.3 × floor',
      ok: ({ ratio }) => ratio <= 1.3,
    },
  );
  return rows;
}

/** API call → 201, and → the first output, with and without a pool. */
export const create: Bench = {
  name: 'create',
  what: 'create a sandbox, and have its first output, beside a bare restore of the same template',
  run,
};

/** `commands.run('true')` on a warm sandbox beside the same argv through the raw agent. */
export const warmTrue: Bench = {
  name: 'true',
  what: "commands.run('true') on a warm sandbox, beside the same argv through the raw agent",
  async run({ effort }) {
    const samples = Math.max(10, Math.round(40 * effort));
    await using server = await benchServer(NO_POOL);
    await using bare = await openBareHost(server.home, ARTIFACTS);
    await using machine = await bare.restore();
    const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000 });
    const raw = async () => {
      const child = await machine.agent.spawn({ ...LOGIN_SHELL, argv: ['/bin/bash', '-l', '-c', 'true'] });
      child.onOutput(() => undefined);
      await Promise.all([child.exit, child.outputEnd]);
    };
    const viaSdk = () => sandbox.commands.run('true');
    for (let index = 0; index < 5; index++) {
      await raw();
      await viaSdk();
    }
    const floor: number[] = [];
    const measured = await repeat(samples, async () => {
      floor.push((await timed(raw)).ms);
      return (await timed(viaSdk)).ms;
    });
    await sandbox.kill();
    return [
      {
        name: "commands.run('true') warm",
        unit: 'ms',
        samples: measured,
        floor,
        budget: '≤ 1.25 × floor + 15 ms',
        ok: ({ p50, floor: bareMs }) => p50 <= 1.25 * bareMs + 15,
      },
    ];
  },
};
