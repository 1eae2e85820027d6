import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type EnvdFixture, startEnvd } from '../testing/envd-fixture.ts';
import {
  basic,
  CONNECT,
  createProcessDriver,
  type ProcessDriver,
  START,
  shell,
  stdoutOf,
} from '../testing/process-driver.ts';
import { createRpcClient, type RpcClient } from '../testing/rpc-client.ts';

let envd: EnvdFixture;
let rpc: RpcClient;
let driver: ProcessDriver;

beforeAll(async () => {
  envd = await startEnvd();
  rpc = createRpcClient(envd.port);
  driver = createProcessDriver(rpc);
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

describe('bulk output', () => {
  test('50 MB arrive complete and in order in events of at most 32 KiB', async () => {
    const bytes = 50_000_000;
    const script = `i=0; while [ $i -lt ${bytes / 10_000_000} ]; do seq -f '%09.0f' 1 1000000; i=$((i+1)); done`;
    await using stream = await rpc.stream(START, { process: shell(script), stdin: false });
    let seen = 0;
    let line = '';
    let expected = 1;
    const end = await stream.until((frame) => {
      const text = stdoutOf(frame);
      expect(text.length).toBeLessThanOrEqual(32_768);
      seen += text.length;
      const lines = (line + text).split('\n');
      line = lines.pop() ?? '';
      for (const number of lines) {
        if (Number(number) !== expected) throw new Error(`line ${number} where ${expected} was due`);
        expected = expected === 1_000_000 ? 1 : expected + 1;
      }
      return (frame.flags & 2) !== 0;
    });
    expect(end.json).toEqual({});
    expect(seen).toBe(bytes);
  });

  test('a client that does not read stops the process and holds up nobody else', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'yes' }, stdin: false });
    const written = async (): Promise<number> => {
      const { stdout } = await driver.run({ process: shell(`grep ^wchar /proc/${pid}/io`) }, basic('root'));
      return Number(/\d+/.exec(stdout)?.[0]);
    };
    let last = -1;
    // Stopped: nothing written over a while that is long for it and short for us.
    await expect
      .poll(
        async () => {
          const now = await written();
          const same = now === last;
          last = now;
          return same;
        },
        { interval: 300, timeout: 20_000 },
      )
      .toBe(true);
    expect((await driver.run({ process: shell('echo quick') })).stdout).toBe('quick\n');
    stream.close();
    await expect.poll(written, { timeout: 10_000 }).toBeGreaterThan(last);
    await driver.kill(pid);
  });

  test('of two readers the one that stands still is ended and the other gets everything', async () => {
    const { stream: slow, pid } = await driver.start({
      process: shell('read x; seq -f %09.0f 1 5000000'),
      stdin: true,
    });
    await using fast = await rpc.stream(CONNECT, { process: { pid } });
    await fast.next();
    await rpc.unary('process.Process/SendInput', { process: { pid }, input: { stdin: btoa('go\n') } });
    let seen = 0;
    await fast.until((frame) => {
      seen += stdoutOf(frame).length;
      return (frame.flags & 2) !== 0;
    });
    expect(seen).toBe(50_000_000);
    expect((await slow.rest()).at(-1)).toMatchObject({ flags: 2, json: { error: { code: 'resource_exhausted' } } });
  });
});
