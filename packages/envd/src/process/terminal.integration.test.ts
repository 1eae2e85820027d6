import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type EnvdFixture, startEnvd } from '../testing/envd-fixture.ts';
import { CONNECT, createProcessDriver, finish, type ProcessDriver, untilOutput } from '../testing/process-driver.ts';
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

/** As the clients start a terminal. */
const TERMINAL = {
  process: {
    cmd: '/bin/bash',
    args: ['-i', '-l'],
    envs: { TERM: 'xterm-256color', LANG: 'C.UTF-8', LC_ALL: 'C.UTF-8', PS1: '$ ' },
  },
  pty: { size: { cols: 80, rows: 24 } },
};

const type = (pid: number, text: string) =>
  rpc.unary('process.Process/SendInput', { process: { pid }, input: { pty: Buffer.from(text).toString('base64') } });

describe('a terminal', () => {
  test('goes on without its client, and the next one sees what follows and ends it', async () => {
    const { stream, pid } = await driver.start({ ...TERMINAL, tag: 'shell' });
    await type(pid, 'MARK=kept; echo first-$((1 + 1))\n');
    await untilOutput(stream, 'first-2');
    stream.close();
    await using again = await rpc.stream(CONNECT, { process: { tag: 'shell' } });
    expect((await again.next())?.json).toEqual({ event: { start: { pid } } });
    await type(pid, 'echo second-$MARK\n');
    await untilOutput(again, 'second-kept');
    expect(await driver.kill(pid)).toEqual({ status: 200, json: {} });
    expect((await finish(again)).end).toEqual({ exitCode: -1, status: 'signal: killed', error: 'signal: killed' });
  });

  test('has its variables, tells programs of a resize, and interrupts what is in front', async () => {
    const { stream, pid } = await driver.start(TERMINAL);
    await type(pid, 'trap \'echo winch-$(stty size | tr " " x)\' WINCH; echo $TERM/$LANG/ready\n');
    await untilOutput(stream, 'xterm-256color/C.UTF-8/ready');
    await rpc.unary('process.Process/Update', { process: { pid }, pty: { size: { cols: 100, rows: 40 } } });
    await untilOutput(stream, 'winch-40x100');
    await type(pid, 'sleep 600; echo status-$?\n');
    // A shell that has forked is not yet behind its child: an interrupt that comes in between is the shell's.
    await expect
      .poll(
        async () =>
          (await driver.run({ process: { cmd: 'ps', args: ['-o', 'comm=,stat=', '--ppid', `${pid}`] } })).stdout,
      )
      .toMatch(/^sleep +S\S*\+/);
    await type(pid, '\x03');
    await type(pid, 'echo status-$?\n');
    await untilOutput(stream, 'status-130');
    await type(pid, 'exit\n');
    expect((await finish(stream)).end).toMatchObject({ exited: true });
  });

  test('carries megabytes whole and in order, in events of at most 16 KiB', async () => {
    const lines = 150_000;
    const { stream } = await driver.start({
      process: { cmd: 'sh', args: ['-c', `stty -onlcr; seq ${lines}`] },
      pty: { size: { cols: 80, rows: 24 } },
    });
    const pieces: Buffer[] = [];
    for (const { json } of await stream.rest()) {
      const event = json.event as { data?: { pty?: string } } | undefined;
      if (event?.data?.pty !== undefined) pieces.push(Buffer.from(event.data.pty, 'base64'));
    }
    expect(Math.max(...pieces.map(({ length }) => length))).toBeLessThanOrEqual(16_384);
    const expected = Array.from({ length: lines }, (_, index) => `${index + 1}\n`).join('');
    expect(Buffer.concat(pieces).toString() === expected).toBe(true);
  });

  test('ends at the time limit of its request', async () => {
    const { stream, pid } = await driver.start(TERMINAL, { 'connect-timeout-ms': '500' });
    const { error } = await finish(stream);
    expect(error?.code).toBe('deadline_exceeded');
    await expect.poll(() => driver.alive(pid)).toBe(false);
  });
});
