import { Sandbox } from 'e2b';
import { type DemoServer, expectThat, PATIENCE, step } from './demo-step.ts';
import { waitUntil } from './wait.ts';

/** Counts in its memory only; its file is what it tells. */
const COUNTER = `
import os, time
count = 0
while True:
    count += 1
    with open('count.new', 'w') as told:
        print(os.getpid(), count, file=told)
    os.rename('count.new', 'count')
    time.sleep(0.05)
`;

interface Count {
  readonly pid: number;
  readonly value: number;
}

async function readCount(sandbox: Sandbox): Promise<Count> {
  const [pid = 0, value = 0] = (await sandbox.files.read('count')).split(' ').map(Number);
  return { pid, value };
}

/** Waits until the program has counted beyond `from`; fails when it is another one that counts. */
async function goesOn(sandbox: Sandbox, from: Count): Promise<Count> {
  const now = await waitUntil(
    async () => {
      const count = await readCount(sandbox);
      return count.value > from.value ? count : undefined;
    },
    { timeout: PATIENCE, what: `the counter to go on from ${from.value}` },
  );
  expectThat(now.pid === from.pid, `the counter is process ${now.pid}, it was ${from.pid}`);
  return now;
}

const show = ({ pid, value }: Count): string => `Python process ${pid} counts ${value}`;

/** One Python process that lives on, whatever is done with its sandbox. */
export async function showLifecycle(sandbox: Sandbox, server: DemoServer): Promise<void> {
  await sandbox.files.write('counter.py', COUNTER);
  let count = await step(
    'start a program that counts',
    async () => {
      await sandbox.commands.run('python3 counter.py', { background: true, timeoutMs: 0 });
      await waitUntil(() => sandbox.files.exists('count'), { timeout: PATIENCE, what: 'the counter' });
      return await goesOn(sandbox, { ...(await readCount(sandbox)), value: 0 });
    },
    show,
  );
  await step(
    'pause: memory to disk, nothing runs',
    () => sandbox.pause(server),
    (paused) => (paused ? 'paused' : 'was paused already'),
  );
  expectThat(!(await sandbox.isRunning()), 'the paused sandbox still runs');
  await step('resume', () => sandbox.connect({ ...server, timeoutMs: 300_000 }));
  count = await step('look at the program', () => goesOn(sandbox, count), show);
  await snapshotIt(sandbox, server, count);
  await forkIt(sandbox, count);
}

async function snapshotIt(sandbox: Sandbox, server: DemoServer, count: Count): Promise<void> {
  const { snapshotId } = await step(
    'snapshot it; it goes on',
    () => sandbox.createSnapshot(),
    (snapshot) => snapshot.snapshotId,
  );
  const copy = await step(
    'create a sandbox from the snapshot',
    () => Sandbox.create(snapshotId, { ...server, timeoutMs: 60_000 }),
    ({ sandboxId }) => sandboxId,
  );
  await step('look at the program in the copy', () => goesOn(copy, count), show);
  await step('kill it and delete the snapshot', async () => {
    await copy.kill();
    expectThat(await Sandbox.deleteSnapshot(snapshotId, server), 'there was no snapshot to delete');
  });
}

async function forkIt(sandbox: Sandbox, count: Count): Promise<void> {
  const children = await step(
    'fork into two more',
    () => sandbox.fork({ count: 2, timeoutMs: 60_000, requestTimeoutMs: PATIENCE }),
    (results) => results.map((child) => (child instanceof Error ? child.message : child.sandboxId)).join(', '),
  );
  for (const [index, child] of children.entries()) {
    if (child instanceof Error) throw child;
    await step(`look at the program in child ${index + 1}`, () => goesOn(child, count), show);
    await child.files.write('mine', 'of this child alone');
    await child.kill();
  }
  expectThat(!(await sandbox.files.exists('mine')), 'what a child wrote is in its source');
  await step('look at the one they came from', () => goesOn(sandbox, count), show);
}
