import { rootProcess } from '@agentenv/agent/testing';
import { Sandbox } from 'e2b';
import { openBareHost } from '../lib/bare.ts';
import type { Bench } from '../lib/row.ts';
import { ARTIFACTS, benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const BYTES = 32 * 2 ** 20;
const FRAME = 32 * 1024;

/** Random, so that nothing on the way compresses it; the same for the product and for the floor. */
function content(): ReadableStream<Uint8Array<ArrayBuffer>> {
  const chunk = crypto.getRandomValues(new Uint8Array(FRAME));
  return ReadableStream.from(Array.from({ length: BYTES / FRAME }, () => chunk));
}

/** Bytes through the product beside bytes through the raw channel, both directions. */
export const channel: Bench = {
  name: 'channel',
  what: 'MB/s of file upload, file download and stdout, beside raw frames in the same direction',
  async run({ effort }) {
    const samples = Math.max(3, Math.round(5 * effort));
    await using server = await benchServer(NO_POOL);
    await using bare = await openBareHost(server.home, ARTIFACTS);
    await using machine = await bare.restore();
    const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 900_000 });
    const rate = async (run: () => Promise<unknown>) => BYTES / 1e6 / ((await timed(run)).ms / 1000);

    const rawUp: number[] = [];
    const rawDown: number[] = [];
    const up: number[] = [];
    const down: number[] = [];
    await repeat(samples, async (index) => {
      rawUp.push(await rate(() => machine.agent.sink(content())));
      rawDown.push(await rate(() => machine.agent.source(BigInt(BYTES), FRAME, () => undefined)));
      // A new file each time: one that exists is filled from its stage, which writes everything twice.
      const path = `/tmp/up-${index}.bin`;
      up.push(await rate(() => sandbox.files.write(path, content(), { useOctetStream: true })));
      down.push(
        await rate(async () => {
          let size = 0;
          for await (const part of await sandbox.files.read(path, { format: 'stream' })) size += part.length;
          if (size !== BYTES) throw new Error(`read ${size} of ${BYTES} bytes`);
        }),
      );
      await sandbox.files.remove(path);
      return 0;
    });
    const stdout = await repeat(samples, () =>
      rate(async () => {
        let size = 0;
        await sandbox.commands.run(`head -c ${BYTES} /dev/zero`, {
          timeoutMs: 0,
          onStdout: (text) => {
            size += text.length;
          },
        });
        if (size !== BYTES) throw new Error(`${size} of ${BYTES} bytes of stdout`);
      }),
    );
    // A process has to make the bytes and push them through a pipe; through the raw agent that is the nearer floor.
    const pipe = await repeat(samples, () =>
      rate(async () => {
        const argv = ['/bin/bash', '-l', '-c', `head -c ${BYTES} /dev/zero`];
        const child = await machine.agent.spawn(rootProcess(argv));
        child.onOutput(() => undefined);
        await child.outputEnd;
      }),
    );
    await sandbox.kill();
    const row = (name: string, values: readonly number[], floor: readonly number[]) => ({
      name,
      unit: 'MB/s',
      samples: values,
      floor,
      budget: '≥ 0.6 × floor',
      ok: ({ ratio }: { readonly ratio: number }) => ratio >= 0.6,
    });
    return [
      row('file up', up, rawUp),
      row('file down', down, rawDown),
      row('stdout', stdout, rawDown),
      row('stdout, beside the raw agent', stdout, pipe),
    ];
  },
};
