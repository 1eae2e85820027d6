import { join } from 'node:path';
import type { Agent } from '@agentenv/agent';
import { rootProcess } from '@agentenv/agent/testing';
import { Sandbox } from 'e2b';
import { openBareHost } from '../lib/bare.ts';
import { startChild } from '../lib/child.ts';
import { type Bench, figure, type Measured } from '../lib/row.ts';
import { ARTIFACTS, benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const BYTES = 32 * 2 ** 20;
const FRAME = 32 * 1024;
const COMMAND = `head -c ${BYTES} /dev/zero`;

/** Random, so that nothing on the way compresses it; the same for the product and for the floor. */
function content(): ReadableStream<Uint8Array<ArrayBuffer>> {
  const chunk = crypto.getRandomValues(new Uint8Array(FRAME));
  return ReadableStream.from(Array.from({ length: BYTES / FRAME }, () => chunk));
}

async function rate(run: () => Promise<unknown>): Promise<number> {
  return BYTES / 1e6 / ((await timed(run)).ms / 1000);
}

function complete(size: number): void {
  if (size !== BYTES) throw new Error(`${size} of ${BYTES} bytes`);
}

/** The three ways of bytes through the SDK, whoever answers it. */
const client = (sandbox: Sandbox) => ({
  up: (path: string) => rate(() => sandbox.files.write(path, content(), { useOctetStream: true })),
  down: (path: string) =>
    rate(async () => {
      let size = 0;
      for await (const part of await sandbox.files.read(path, { format: 'stream' })) size += part.length;
      complete(size);
    }),
  stdout: () =>
    rate(async () => {
      let size = 0;
      const onStdout = (text: string): void => {
        size += text.length;
      };
      await sandbox.commands.run(COMMAND, { timeoutMs: 0, onStdout });
      complete(size);
    }),
});

const raw = (agent: Agent) => ({
  up: () => rate(() => agent.sink(content())),
  down: () => rate(() => agent.source(BigInt(BYTES), FRAME, () => undefined)),
  stdout: () =>
    rate(async () => {
      const child = await agent.spawn(rootProcess(['/bin/bash', '-l', '-c', COMMAND]));
      child.onOutput(() => undefined);
      await child.outputEnd;
    }),
});

/** Megabytes per second of work that is done one after the other. */
function together(one: readonly number[], other: readonly number[]): number[] {
  return one.map((value, index) => 1 / (1 / value + 1 / (other[index] ?? Number.NaN)));
}

/**
 * Bytes through the product beside what is below and above it: raw frames, and the SDK by itself. The budget is set
 * against both one after the other, because they share the same two CPUs with everything the product does: raw frames
 * alone can be faster than the SDK is when nothing stands behind it.
 */
export const channel: Bench = {
  name: 'channel',
  what: 'MB/s of file upload, file download and stdout, beside raw frames and the SDK alone, one after the other',
  async run({ effort }) {
    const samples = Math.max(3, Math.round(5 * effort));
    const canned = [process.execPath, join(import.meta.dirname, '../lib/canned-guest.ts'), String(BYTES)];
    await using server = await benchServer(NO_POOL);
    await using bare = await openBareHost(server.home, ARTIFACTS);
    await using machine = await bare.restore();
    await using nothing = await startChild(canned, 'SIGTERM');
    const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 900_000 });
    const alone = client(await Sandbox.connect(sandbox.sandboxId, { ...server.sdk, sandboxUrl: nothing.line }));
    const product = client(sandbox);
    const frames = raw(machine.agent);

    const up: number[] = [];
    const aloneUp: number[] = [];
    const rawUp: number[] = [];
    const down: number[] = [];
    const aloneDown: number[] = [];
    const rawDown: number[] = [];
    await repeat(samples, async (index) => {
      // A new file each time: one that exists is filled from its stage, which writes everything twice.
      const path = `/tmp/up-${index}.bin`;
      rawUp.push(await frames.up());
      aloneUp.push(await alone.up(path));
      up.push(await product.up(path));
      rawDown.push(await frames.down());
      aloneDown.push(await alone.down(path));
      down.push(await product.down(path));
      await sandbox.files.remove(path);
      return 0;
    });
    const stdout = await repeat(samples, product.stdout);
    const aloneStdout = await repeat(samples, alone.stdout);
    // A process in the guest has to make the bytes and push them through a pipe, which no server can make faster.
    const rawStdout = await repeat(samples, frames.stdout);
    await sandbox.kill();

    const row = (name: string, values: readonly number[], floor: readonly number[]): Measured => ({
      name,
      unit: 'MB/s',
      samples: values,
      floor,
      budget: '≥ 0.6 × floor',
      ok: ({ ratio }) => ratio >= 0.6,
    });
    return [
      row('file up', up, together(rawUp, aloneUp)),
      figure('file up: raw frames', 'MB/s', rawUp),
      figure('file up: the SDK alone', 'MB/s', aloneUp),
      row('file down', down, together(rawDown, aloneDown)),
      figure('file down: raw frames', 'MB/s', rawDown),
      figure('file down: the SDK alone', 'MB/s', aloneDown),
      row('stdout', stdout, together(rawStdout, aloneStdout)),
      figure('stdout: raw frames of a process', 'MB/s', rawStdout),
      figure('stdout: the SDK alone', 'MB/s', aloneStdout),
    ];
  },
};
