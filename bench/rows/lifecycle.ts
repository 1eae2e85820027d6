import { copyFile, open, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { LaunchPlan, RunningSandbox, StoredSnapshot } from '@agentenv/runtime';
import { waitUntil } from '../../e2e/lib/wait.ts';
import { runInGuest } from '../../packages/runtime/src/testing/guest-run.ts';
import { type BareHost, openBareHost } from '../lib/bare.ts';
import { openStage, type Stage } from '../lib/capture-stage.ts';
import type { Bench, BenchContext, Measured } from '../lib/row.ts';
import { ARTIFACTS, repeat, timed } from '../lib/session.ts';

const MIB = 2 ** 20;
const SMALL_MIB = 20;
const LARGE_MIB = 256;
const SNAPSHOT_FIXED_MS = 35;
const FORK_READY_MS = 200;
const RESUME_POOLED_MS = 150;
const ENGINE_READY_MS = 60_000;
const AT_ONCE = 16;
const RESUMED = { identity: 'kept' } as const;

async function dirty({ agent }: RunningSandbox, mebibytes: number): Promise<void> {
  const fill = `mount -o remount,size=90% /dev/shm && head -c ${mebibytes}M /dev/zero | tr '\\0' x > /dev/shm/dirty`;
  const { code, stderr } = await runInGuest(agent, ['sh', '-c', fill], { user: 'root' });
  if (code !== 0) throw new Error(`the guest could not change its memory: ${stderr}`);
}

/** Names of the files only this capture has. */
async function ownFiles(directory: string): Promise<string[]> {
  return (await readdir(directory)).filter((name) => /^(memory-\d+\.layer|disk-\d+\.qcow2|devices\.state)$/.test(name));
}

/** Copies what a capture wrote, one file after another, and puts it on the platter. */
async function copyAndSync(directory: string, target: string): Promise<void> {
  for (const name of await ownFiles(directory)) {
    const copy = join(target, name);
    await copyFile(join(directory, name), copy);
    await using file = await open(copy, 'r');
    await file.sync();
  }
}

interface PauseSample {
  readonly pauseMs: number;
  readonly copyMs: number;
  readonly resumeMs: number;
}

/** A sandbox with that much changed memory is captured, stopped and restored. */
async function pauseOnce(stage: Stage, mebibytes: number): Promise<PauseSample> {
  const { backend, template, world } = stage;
  const [directory, scratch] = [await world.emptyDirectory(), await world.emptyDirectory()];
  await using sandbox = await backend.restore(template, stage.plan());
  await dirty(sandbox, mebibytes);
  const { value: captured, ms: pauseMs } = await timed(() => sandbox.capture(directory));
  await sandbox.stop();
  const { ms: copyMs } = await timed(() => copyAndSync(directory, scratch));
  const snapshot = { directory, manifest: captured.manifest };
  const { value: resumed, ms: resumeMs } = await timed(async () => {
    const again = await backend.restore(snapshot, { ...stage.plan(), ...RESUMED });
    await again.agent.ping();
    return again;
  });
  await resumed.stop();
  await Promise.all([directory, scratch].map((path) => rm(path, { recursive: true })));
  return { pauseMs, copyMs, resumeMs };
}

/** Milliseconds above what the changed memory accounts for that the source of a snapshot stands still. */
async function snapshotOnce(stage: Stage, mebibytes: number): Promise<number> {
  const { backend, template, world } = stage;
  const directory = await world.emptyDirectory();
  await using sandbox = await backend.restore(template, stage.plan());
  await dirty(sandbox, mebibytes);
  const captured = await sandbox.snapshot(directory);
  const layer = captured.manifest.memoryLayers?.[0]?.size ?? 0;
  await rm(directory, { recursive: true });
  return stage.lastHeldMs() - layer / MIB;
}

/** One capture of a sandbox that had that much changed memory; sandboxes are started from it. */
async function captureOne(stage: Stage, mebibytes: number): Promise<StoredSnapshot> {
  const { backend, template, world } = stage;
  const directory = await world.emptyDirectory();
  await using sandbox = await backend.restore(template, stage.plan());
  await dirty(sandbox, mebibytes);
  const { manifest } = await sandbox.snapshot(directory);
  return { directory, manifest };
}

/** Milliseconds until `count` sandboxes that are started from a capture at once have all answered. */
async function startFrom({ backend, plan }: Stage, snapshot: StoredSnapshot, count: number): Promise<number> {
  await using started = new AsyncDisposableStack();
  const { ms } = await timed(() =>
    Promise.all(
      Array.from({ length: count }, async () => {
        const sandbox = started.use(await backend.restore(snapshot, plan()));
        await sandbox.agent.ping();
      }),
    ),
  );
  return ms;
}

/** Milliseconds until `count` bare restores that begin at once have all answered: what the processors can do. */
async function startBare(bare: BareHost, count: number): Promise<number> {
  await using started = new AsyncDisposableStack();
  const { ms } = await timed(() =>
    Promise.all(Array.from({ length: count }, async () => started.use(await bare.restore()))),
  );
  return ms;
}

/** In an engine that was started in advance; it waits until one is ready and the host is quiet. */
async function startPooled(
  { pooled, plan }: Stage,
  snapshot: StoredSnapshot,
  own: Pick<LaunchPlan, 'identity'>,
): Promise<number> {
  const { hits } = pooled.status().engines;
  const isFull = async () => pooled.status().engines.ready === pooled.status().engines.target;
  await waitUntil(isFull, { timeout: ENGINE_READY_MS, what: 'engines that were started in advance' });
  const { value: sandbox, ms } = await timed(async () => {
    const started = await pooled.restore(snapshot, { ...plan(), ...own });
    await started.agent.ping();
    return started;
  });
  await sandbox.stop();
  if (pooled.status().engines.hits !== hits + 1) throw new Error('no engine that was started in advance was taken');
  return ms;
}

async function run({ progress, effort }: BenchContext): Promise<readonly Measured[]> {
  const samples = Math.max(5, Math.round(20 * effort));
  await using stack = new AsyncDisposableStack();
  const stage = await openStage(stack);
  progress('floor: bare restores');
  await using bare = await openBareHost(stage.world.home, ARTIFACTS, { engines: stage.world.home, atOnce: AT_ONCE });
  const floor = await repeat(samples, async () => {
    await using machine = await bare.restore();
    return machine.pingMs;
  });
  progress(`pause and resume with ${SMALL_MIB} MiB`);
  const small: PauseSample[] = [];
  for (let index = 0; index < samples; index++) small.push(await pauseOnce(stage, SMALL_MIB));
  progress(`pause with ${LARGE_MIB} MiB`);
  const large: PauseSample[] = [];
  for (let index = 0; index < samples / 2; index++) large.push(await pauseOnce(stage, LARGE_MIB));
  progress('snapshots');
  const held = await repeat(samples, () => snapshotOnce(stage, SMALL_MIB));
  progress('children of a fork');
  const captured = await captureOne(stage, SMALL_MIB);
  const children = await repeat(samples, () => startFrom(stage, captured, 1));
  progress('from engines in advance');
  stage.pooled.warm(stage.template);
  // The first of a backend that did not make the capture reads all of it.
  await startPooled(stage, captured, RESUMED);
  const resumesAhead = await repeat(samples, () => startPooled(stage, captured, RESUMED));
  const childrenAhead = await repeat(samples, () => startPooled(stage, captured, {}));
  await stage.pooled[Symbol.asyncDispose]();
  progress(`${AT_ONCE} at once`);
  const [many, bareMany]: [number[], number[]] = [[], []];
  for (let round = 0; round < Math.max(3, Math.round(samples / 4)); round++) {
    many.push(await startFrom(stage, captured, AT_ONCE));
    bareMany.push(await startBare(bare, AT_ONCE));
  }
  return [
    {
      name: `pause, ${SMALL_MIB} MiB changed`,
      unit: 'ms',
      samples: small.map(({ pauseMs }) => pauseMs),
      floor: small.map(({ copyMs }) => copyMs),
      budget: '≤ 120 ms',
      ok: ({ p50 }) => p50 <= 120,
    },
    {
      name: `pause, ${LARGE_MIB} MiB changed`,
      unit: 'ms',
      samples: large.map(({ pauseMs }) => pauseMs),
      floor: large.map(({ copyMs }) => copyMs),
      budget: '≤ 1.6 × floor',
      ok: ({ ratio }) => ratio <= 1.6,
    },
    {
      name: 'resume cold',
      unit: 'ms',
      samples: small.map(({ resumeMs }) => resumeMs),
      floor,
      budget: '≤ 1.3 × floor',
      ok: ({ ratio }) => ratio <= 1.3,
    },
    {
      name: 'snapshot: source stopped, less 1 ms per MiB',
      unit: 'ms',
      samples: held,
      floor: undefined,
      budget: `≤ ${SNAPSHOT_FIXED_MS} ms`,
      ok: ({ p50 }) => p50 <= SNAPSHOT_FIXED_MS,
    },
    {
      name: `create from a snapshot of ${SMALL_MIB} MiB, cold`,
      unit: 'ms',
      samples: children,
      floor,
      budget: '≤ 1.5 × floor',
      ok: ({ ratio }) => ratio <= 1.5,
    },
    {
      name: 'resume in an engine started in advance',
      unit: 'ms',
      samples: resumesAhead,
      floor,
      budget: `≤ ${RESUME_POOLED_MS} ms`,
      ok: ({ p50 }) => p50 <= RESUME_POOLED_MS,
    },
    {
      name: 'child of a fork in an engine started in advance',
      unit: 'ms',
      samples: childrenAhead,
      floor,
      budget: `≤ ${FORK_READY_MS} ms`,
      ok: ({ p50 }) => p50 <= FORK_READY_MS,
    },
    {
      name: `${AT_ONCE} from captures at once`,
      unit: 'ms',
      samples: many,
      floor: bareMany,
      budget: '≤ 1.5 × floor',
      ok: ({ ratio }) => ratio <= 1.5,
    },
    {
      // As it was planned; what bare restores reach says whether this host can do it.
      name: `the same, beside ${AT_ONCE} × one alone`,
      unit: 'ms',
      samples: many,
      floor: children.map((ms) => AT_ONCE * ms),
      budget: '–',
      ok: () => true,
    },
    {
      name: `${AT_ONCE} bare restores at once, beside ${AT_ONCE} × one alone`,
      unit: 'ms',
      samples: bareMany,
      floor: floor.map((ms) => AT_ONCE * ms),
      budget: '–',
      ok: () => true,
    },
  ];
}

/** Pause, resume, snapshot and fork of one sandbox at the level of the backend. */
export const lifecycle: Bench = {
  name: 'lifecycle',
  what: 'pause, resume, snapshot and fork of a sandbox in the backend, beside copying the same bytes and a bare restore',
  run,
};
