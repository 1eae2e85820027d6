import { chmod, rm } from 'node:fs/promises';
import type { StoredSnapshot } from '@agentenv/runtime';
import { runInGuest } from '../../packages/runtime/src/testing/guest-run.ts';
import { openStage, type Stage } from '../lib/capture-stage.ts';
import { type Bench, type BenchContext, figure, type Measured } from '../lib/row.ts';
import { changedBytes, storedBytes } from '../lib/stored-bytes.ts';

const MIB = 2 ** 20;
/** Snapshots of one sandbox, and what its programs change before each of them. */
const CHAIN = 10;
const CHAIN_STEP_MIB = 8;

/** MiB that a row of snapshots of one sandbox stores, beside what changed between them: all of it, its guest's own doing too. */
interface StoredSample {
  readonly memory: number;
  readonly disk: number;
  readonly other: number;
  readonly changedMemory: number;
  readonly changedDisk: number;
}

/** The sandbox fills other memory and writes one more file before each snapshot. */
async function storeOnce({ backend, template, world, plan }: Stage): Promise<StoredSample> {
  await using sandbox = await backend.restore(template, plan());
  const known = new Set<number>();
  await storedBytes(template.directory, known);
  const captures: StoredSnapshot[] = [];
  const stored = { memory: 0, disk: 0, other: 0 };
  for (let index = 0; index < CHAIN; index++) {
    const fill = `mount -o remount,size=90% /dev/shm && head -c ${CHAIN_STEP_MIB}M /dev/urandom > /dev/shm/${index}`;
    const { code, stderr } = await runInGuest(sandbox.agent, ['sh', '-c', `${fill} && date > /root/${index} && sync`], {
      user: 'root',
    });
    if (code !== 0) throw new Error(`the guest could not change its memory: ${stderr}`);
    const directory = await world.emptyDirectory();
    // The images are read with the rights of nobody.
    await chmod(directory, 0o711);
    captures.push({ directory, manifest: (await sandbox.snapshot(directory)).manifest });
    for (const [name, bytes] of await storedBytes(directory, known)) {
      const [kind = ''] = name.split(/[-.]/);
      stored[kind === 'memory' || kind === 'disk' ? kind : 'other'] += bytes / MIB;
    }
  }
  const { artifacts, exec } = world;
  const scratch = await world.emptyDirectory();
  const changes = await changedBytes(template, captures, { artifacts, exec, scratch });
  await Promise.all(
    [scratch, ...captures.map(({ directory }) => directory)].map((path) => rm(path, { recursive: true })),
  );
  const total = (kind: 'memory' | 'disk') => changes.reduce((sum, changed) => sum + changed[kind], 0) / MIB;
  return { ...stored, changedMemory: total('memory'), changedDisk: total('disk') };
}

async function run({ effort }: BenchContext): Promise<readonly Measured[]> {
  await using stack = new AsyncDisposableStack();
  const stage = await openStage(stack);
  const samples: StoredSample[] = [];
  for (let index = 0; index < Math.max(1, Math.round(2 * effort)); index++) samples.push(await storeOnce(stage));
  const kinds = ['memory', 'disk', 'other', 'changedMemory', 'changedDisk'] as const;
  return [
    {
      name: `stored by ${CHAIN} snapshots, ${CHAIN_STEP_MIB} MiB changed by programs before each`,
      unit: 'MiB',
      samples: samples.map(({ memory, disk, other }) => memory + disk + other),
      floor: samples.map(({ changedMemory, changedDisk }) => changedMemory + changedDisk),
      budget: `≤ 1.3 × floor + ${CHAIN} MiB`,
      ok: ({ p50, floor }) => p50 <= 1.3 * floor + CHAIN,
    },
    ...kinds.map((kind) =>
      figure(
        `the same: ${kind}`,
        'MiB',
        samples.map((sample) => sample[kind]),
      ),
    ),
  ];
}

/** What a row of snapshots of one sandbox stores, and of what it consists. */
export const stored: Bench = {
  name: 'stored',
  what: 'bytes a row of snapshots of one sandbox stores, beside those that changed between them',
  run,
};
