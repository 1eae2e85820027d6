import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { GuestProcess, SpawnRequest } from '../agent.ts';
import { type NativeGuest, startNativeGuest } from '../testing/native-guest.ts';
import { testClock } from '../testing/test-clock.ts';

let guest: NativeGuest;
beforeAll(async () => {
  guest = await startNativeGuest();
});
afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

const DEFAULTS: SpawnRequest = {
  ...{ user: 'user', argv: ['true'], env: {}, cwd: '', defaultCwd: '', stdin: false },
  ...{ tag: '', config: new Uint8Array(0), killAfterMs: 0 },
};
const start = (request: Partial<SpawnRequest>): Promise<GuestProcess> => guest.agent.spawn({ ...DEFAULTS, ...request });
const shell = (script: string, request: Partial<SpawnRequest> = {}): Promise<GuestProcess> =>
  start({ argv: ['bash', '-c', script], ...request });

/** Collects the output of a process as text per stream. */
function collect(process: GuestProcess): {
  readonly text: (stream?: 'stdout' | 'stderr' | 'pty') => string;
  until(part: string): Promise<void>;
} {
  const texts = { stdout: '', stderr: '', pty: '' };
  const waiting = new Set<() => void>();
  process.onOutput(({ stream, data }) => {
    texts[stream] += Buffer.from(data).toString('latin1');
    for (const wake of waiting) wake();
  });
  return {
    text: (stream = 'stdout') => texts[stream],
    async until(part) {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const look = (): void => {
        if (Object.values(texts).some((text) => text.includes(part))) resolve();
      };
      waiting.add(look);
      look();
      using _timer = testClock.timer(10_000, () => reject(new Error(`no "${part}" in ${JSON.stringify(texts)}`)));
      await promise;
      waiting.delete(look);
    },
  };
}

describe('processes of the native guest', () => {
  it('run as their user, in their directory, with their environment', async () => {
    const process = await shell('id -un; id -G; pwd; echo "$A $HOME"; echo oops >&2', { env: { A: 'b c' } });
    const output = collect(process);
    expect(await process.exit).toMatchObject({ code: 0, signal: 0, reason: 'ended' });
    await process.outputEnd;
    expect(output.text()).toBe('user\n1000 2000\n/home/user\nb c /home/user\n');
    expect(output.text('stderr')).toBe('oops\n');
    expect(process.received('stdout')).toBe(BigInt(output.text().length));
  });

  it('that cannot be started say why', async () => {
    const reasons = async (request: Partial<SpawnRequest>): Promise<unknown> => {
      const failed = await start(request).then(
        () => undefined,
        (error: unknown) => error,
      );
      return (failed as { details?: { status?: unknown } }).details?.status;
    };
    expect(await reasons({ user: 'nobody-at-all' })).toBe('UNKNOWN_USER');
    expect(await reasons({ cwd: '/nowhere' })).toBe('BAD_CWD');
    expect(await reasons({ argv: ['no-such-program'] })).toBe('EXEC_FAILED');
  });

  it('take stdin until it is closed, more than any window of it', async () => {
    const process = await shell('sha256sum', { stdin: true });
    const output = collect(process);
    const block = Buffer.alloc(100_000);
    const hash = createHash('sha256');
    for (let index = 0; index < 30; index++) {
      block.fill(index);
      hash.update(block);
      await process.writeStdin(Buffer.from(block));
    }
    await process.closeStdin();
    await process.outputEnd;
    expect(output.text().slice(0, 64)).toBe(hash.digest('hex'));
  });

  it('get a terminal of the size asked for, resized on demand', async () => {
    const process = await start({ argv: ['bash', '--norc'], stdin: true, pty: { cols: 91, rows: 17 } });
    const output = collect(process);
    await process.writeStdin(Buffer.from('stty size; tty\n'));
    await output.until('17 91');
    await output.until('/dev/pts/');
    await process.resize({ cols: 120, rows: 40 });
    await process.writeStdin(Buffer.from('stty size\n'));
    await output.until('40 120');
    await process.writeStdin(Buffer.from('exit 5\n'));
    expect(await process.exit).toMatchObject({ code: 5 });
    await process.outputEnd;
    expect(process.received('pty')).toBe(BigInt(output.text('pty').length));
  });

  it('are signalled, one by one', async () => {
    const process = await shell('trap "echo term; exit 9" TERM; echo ready; while :; do sleep 0.05; done');
    const output = collect(process);
    await output.until('ready');
    await process.signal(15);
    expect(await process.exit).toMatchObject({ code: 9, signal: 0 });
    const killed = await start({ argv: ['sleep', '60'] });
    await killed.signal(9);
    expect(await killed.exit).toMatchObject({ signal: 9, reason: 'ended' });
    await expect(killed.signal(9)).rejects.toMatchObject({ code: 'not_found' });
  });

  it('are killed by the guest when their time is over', async () => {
    const process = await start({ argv: ['sleep', '60'], killAfterMs: 50 });
    expect(await process.exit).toMatchObject({ signal: 9, reason: 'deadline' });
  });

  it('that are given up while they start leave nothing running', async () => {
    const controller = new AbortController();
    const request = { ...DEFAULTS, argv: ['sleep', '61'], tag: 'given-up' };
    const spawning = guest.agent.spawn(request, controller.signal);
    controller.abort();
    await expect(spawning).rejects.toMatchObject({ code: 'canceled' });
    const running = async (): Promise<string> => {
      const process = await shell('pgrep -c -f "^sleep 61$"');
      const output = collect(process);
      await process.outputEnd;
      return output.text().trim();
    };
    await expect.poll(running, { timeout: 5000 }).toBe('0');
    expect((await guest.agent.listProcesses()).map(({ tag }) => tag)).not.toContain('given-up');
  });

  it('deliver 50 MB of stdout complete and in order', async () => {
    const size = 50_000_000;
    const process = await shell(`seq -w 0 6249999`);
    let received = 0;
    const hash = createHash('sha256');
    process.onOutput(async ({ data }) => {
      received += data.length;
      hash.update(data);
    });
    const { stdoutTotal } = await process.exit;
    await process.outputEnd;
    expect(received).toBe(size);
    expect(stdoutTotal).toBe(BigInt(size));
    const expected = createHash('sha256');
    for (let index = 0; index < 6_250_000; index += 62_500) {
      let block = '';
      for (let line = index; line < index + 62_500; line++) block += `${String(line).padStart(7, '0')}\n`;
      expected.update(block);
    }
    expect(hash.digest('hex')).toBe(expected.digest('hex'));
  });

  it('whose consumer stalls wait for it and delay nobody else', async () => {
    const gate = Promise.withResolvers<void>();
    const stalled = await Promise.all([1, 2, 3, 4].map(() => shell('yes | head -c 3000000')));
    const counts = stalled.map((process) => {
      process.onOutput(() => gate.promise);
      return () => process.received('stdout');
    });
    const round = async (): Promise<number> => {
      const started = testClock.monotonic();
      await guest.agent.ping();
      return testClock.monotonic() - started;
    };
    const other = await shell('head -c 8000000 /dev/zero');
    const times: number[] = [];
    other.onOutput(() => {});
    for (let index = 0; index < 100; index++) times.push(await round());
    await other.outputEnd;
    expect(other.received('stdout')).toBe(8_000_000n);
    expect(times.sort((a, b) => a - b)[50]).toBeLessThan(50);
    expect(counts.every((count) => count() <= 65_536n)).toBe(true);
    gate.resolve();
    await Promise.all(stalled.map((process) => process.outputEnd));
    expect(counts.map((count) => count())).toEqual([3_000_000n, 3_000_000n, 3_000_000n, 3_000_000n]);
  });

  it('report their exit although a child of theirs keeps the output open', async () => {
    const process = await shell('sleep 0.3 & echo started');
    const output = collect(process);
    expect(await process.exit).toMatchObject({ code: 0 });
    await process.outputEnd;
    expect(output.text()).toBe('started\n');
  });
});
