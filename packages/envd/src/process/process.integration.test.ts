import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { decodeFrames, encodeFrame } from '../testing/connect-frames.ts';
import { type EnvdFixture, startEnvd } from '../testing/envd-fixture.ts';
import {
  basic,
  CONNECT,
  createProcessDriver,
  finish,
  type ProcessDriver,
  START,
  shell,
  untilOutput,
} from '../testing/process-driver.ts';
import { createRpcClient, type RpcClient, summarise } from '../testing/rpc-client.ts';

let envd: EnvdFixture;
let rpc: RpcClient;
let driver: ProcessDriver;

beforeAll(async () => {
  envd = await startEnvd({ envVars: { GLOBAL: 'global', BOTH: 'global' } });
  rpc = createRpcClient(envd.port);
  driver = createProcessDriver(rpc);
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

describe('Start', () => {
  test('streams start, output and end, and closes with an empty end frame', async () => {
    await using stream = await rpc.stream(START, { process: shell('echo out; echo err >&2; exit 3'), stdin: false });
    expect(stream.headers['content-type']).toBe('application/connect+json');
    const frames = await stream.rest();
    expect(frames.at(-1)).toEqual({ flags: 2, json: {} });
    expect(summarise(frames)).toMatchObject({
      stdout: 'out\n',
      stderr: 'err\n',
      end: { exitCode: 3, exited: true, status: 'exit status 3', error: 'exit status 3' },
    });
  });

  test('success has no error field', async () => {
    const { end } = await driver.run({ process: shell('true') });
    expect(end).not.toHaveProperty('error');
    expect(end).toMatchObject({ exited: true, status: 'exit status 0' });
  });

  test('the start frame comes before the process says anything', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'sleep', args: ['60'] } });
    expect(await driver.alive(pid)).toBe(true);
    stream.close();
    await driver.kill(pid);
  });

  test('stdin false is an empty file, absent is a pipe that waits', async () => {
    expect(await driver.run({ process: { cmd: 'cat' }, stdin: false })).toMatchObject({
      stdout: '',
      end: { exited: true },
    });
    const { stream, pid } = await driver.start({ process: { cmd: 'cat' } });
    await rpc.unary('process.Process/SendInput', { process: { pid }, input: { stdin: btoa('hello') } });
    await untilOutput(stream, 'hello');
    expect(await rpc.unary('process.Process/CloseStdin', { process: { pid } })).toEqual({ status: 200, json: {} });
    expect(await finish(stream)).toMatchObject({
      end: { exited: true },
    });
  });

  test('global and request variables, and the identity of the sandbox on top', async () => {
    const envs = { BOTH: 'request', MINE: 'a "b" $c\nd', E2B_SANDBOX_ID: 'forged' };
    const script = 'echo "$GLOBAL|$BOTH|$MINE|$E2B_SANDBOX|$E2B_SANDBOX_ID|$E2B_TEMPLATE_ID|$HOME|$USER|$PATH"';
    const { stdout } = await driver.run({ process: { ...shell(script), envs } });
    expect(stdout).toMatch(/^global\|request\|a "b" \$c\nd\|true\|itest\|base\|\/home\/user\|user\|.*\/usr\/bin.*\n$/);
  });

  test('the user of the Basic header, with its groups', async () => {
    expect((await driver.run({ process: { cmd: 'id' } })).stdout).toBe(
      'uid=1000(user) gid=1000(user) groups=1000(user),2000(extra)\n',
    );
    const { stdout } = await driver.run({ process: { cmd: 'id' } }, basic('daemon'));
    expect(stdout).toMatch(/^uid=1\(daemon\)/);
  });

  test.each([
    [
      'an unknown user',
      { process: shell('true') },
      basic('nosuchuser'),
      'unauthenticated',
      "invalid username: 'nosuchuser'",
    ],
    [
      'a missing directory',
      { process: { ...shell('true'), cwd: '/no/such' } },
      {},
      'invalid_argument',
      "cwd '/no/such' does not exist",
    ],
    ['a missing program', { process: { cmd: '/no/such' } }, {}, 'invalid_argument', /\/no\/such/],
    ['no program', { process: {} }, {}, 'invalid_argument', 'process.cmd is required'],
    [
      'an argument the kernel cannot take',
      { process: { cmd: 'x', args: ['y'.repeat(200_000)] } },
      {},
      'invalid_argument',
      /args\[0\] is 200000 bytes/,
    ],
  ])('%s is an error in the end frame of a 200', async (_what, request, headers, code, message) => {
    const { error, pid } = await driver.run(request, headers);
    expect(error).toMatchObject({ code, message: expect.stringMatching(message) });
    expect(pid).toBe(0);
  });

  test('relative directories and ~ belong to the home of the user', async () => {
    expect((await driver.run({ process: { cmd: 'pwd', cwd: '~' } })).stdout).toBe('/home/user\n');
    expect((await driver.run({ process: { cmd: 'pwd', cwd: '.' } })).stdout).toBe('/home/user\n');
    expect((await driver.run({ process: { cmd: 'pwd' } })).stdout).toBe('/home/user\n');
  });

  test('a large command line works', async () => {
    const text = 'x'.repeat(100_000);
    expect((await driver.run({ process: { cmd: 'printf', args: ['%s', text] } })).stdout).toBe(text);
  });

  test('the end waits for whoever holds the pipes, but not after a kill', async () => {
    const patient = await driver.run({ process: shell('(sleep 0.3; echo late) & echo early'), stdin: false });
    expect(patient.stdout).toBe('early\nlate\n');
    const { stream, pid } = await driver.start({ process: shell('sleep 60 & echo $!; wait'), stdin: false });
    const sleeper = Number(await untilOutput(stream, '\n'));
    await rpc.unary('process.Process/SendSignal', { process: { pid }, signal: 'SIGNAL_SIGTERM' });
    const rest = await finish(stream);
    expect(rest.end).toEqual({ exitCode: -1, status: 'signal: terminated', error: 'signal: terminated' });
    expect(await driver.alive(sleeper)).toBe(true);
    await driver.run({ process: shell(`kill -9 ${sleeper}`) });
  });
});

describe('time limit', () => {
  test('ends the process and the stream, behind the output until then', async () => {
    const { stdout, error, end, pid } = await driver.run(
      { process: shell('echo before; exec sleep 60'), stdin: false },
      { 'connect-timeout-ms': '400' },
    );
    expect(stdout).toBe('before\n');
    expect(error?.code).toBe('deadline_exceeded');
    expect(end).toBeUndefined();
    await expect.poll(() => driver.alive(pid), { timeout: 10_000 }).toBe(false);
  });

  test('of Connect ends only the stream', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'sleep', args: ['60'] }, stdin: false });
    await using second = await rpc.stream(CONNECT, { process: { pid } }, { 'connect-timeout-ms': '200' });
    expect(summarise(await second.rest())).toMatchObject({ pid, error: { code: 'deadline_exceeded' } });
    expect(await driver.alive(pid)).toBe(true);
    stream.close();
    await driver.kill(pid);
  });

  test('another stream of the process learns that it was killed', async () => {
    const { stream, pid } = await driver.start(
      { process: { cmd: 'sleep', args: ['60'] }, stdin: false },
      { 'connect-timeout-ms': '500' },
    );
    await using second = await rpc.stream(CONNECT, { process: { pid } });
    expect(summarise(await second.rest()).end).toMatchObject({ exitCode: -1, status: 'signal: killed' });
    stream.close();
  });

  test('far beyond 24 days is no limit now', async () => {
    const { stdout, error } = await driver.run(
      { process: shell('sleep 0.1; echo ok') },
      { 'connect-timeout-ms': '9999999999' },
    );
    expect(stdout).toBe('ok\n');
    expect(error).toBeUndefined();
  });

  test('a malformed one is refused', async () => {
    const { error } = await driver.run({ process: shell('true') }, { 'connect-timeout-ms': 'soon' });
    expect(error?.code).toBe('invalid_argument');
  });
});

describe('a client that goes away', () => {
  test('leaves the process running, its output is dropped, and Connect by pid or tag sees what follows', async () => {
    const go = '/tmp/go';
    const script = `echo first; while ! [ -e ${go} ]; do echo noise; sleep 0.01; done; echo last`;
    const { stream, pid } = await driver.start({ process: shell(script), stdin: false, tag: 'a-tag' });
    await untilOutput(stream, 'first');
    stream.close();
    await expect.poll(() => envd.sockets.size).toBe(0);
    await using again = await rpc.stream(CONNECT, { process: { tag: 'a-tag' } });
    expect((await again.next())?.json).toEqual({ event: { start: { pid } } });
    await driver.run({ process: { cmd: 'touch', args: [go] } });
    const { stdout, end } = await finish(again);
    expect(stdout).toMatch(/^(noise\n)*last\n$/);
    expect(stdout).not.toContain('first');
    expect(end).toMatchObject({ exited: true });
  });

  test('while the process starts gets no hung server', async () => {
    for (let round = 0; round < 20; round++) {
      const abort = new AbortController();
      const request = envd.request(`/${START}`, {
        method: 'POST',
        headers: { 'content-type': 'application/connect+json' },
        body: encodeFrame({ process: shell('sleep 0.05') }),
        signal: abort.signal,
      });
      const failed = expect(request).rejects.toThrow();
      setImmediate(() => abort.abort());
      await failed;
    }
    expect((await driver.run({ process: shell('echo ok') })).stdout).toBe('ok\n');
  });
});

describe('Connect', () => {
  test('to a process that has just ended still gives start and end', async () => {
    const { pid } = await driver.run({ process: shell('echo gone; exit 5') });
    await using stream = await rpc.stream(CONNECT, { process: { pid } });
    expect(summarise(await stream.rest())).toMatchObject({ pid, stdout: '', end: { exitCode: 5, exited: true } });
  });

  test.each([
    ['an unknown pid', { process: { pid: 4_000_000 } }, 'not_found'],
    ['an unknown tag', { process: { tag: 'nobody' } }, 'not_found'],
    ['no selector', {}, 'invalid_argument'],
  ])('%s is an error in the end frame', async (_what, request, code) => {
    await using stream = await rpc.stream(CONNECT, request);
    expect(stream.status).toBe(200);
    expect(summarise(await stream.rest()).error?.code).toBe(code);
  });
});

describe('keepalive', () => {
  test('comes after so many silent seconds as asked for', async () => {
    const { keepalives, stdout } = await driver.run(
      { process: shell('sleep 1.5; echo x'), stdin: false },
      { 'keepalive-ping-interval': '1' },
    );
    expect(keepalives).toBe(1);
    expect(stdout).toBe('x\n');
  });
});

describe('List', () => {
  test('has running processes with their configuration and tag, and no ended ones', async () => {
    const { pid: ended } = await driver.run({ process: shell('true') });
    const config = { cmd: '/bin/sh', args: ['-c', 'exec sleep 60'], envs: { A: '1' }, cwd: '/tmp' };
    const { stream, pid } = await driver.start({ process: config, tag: 'listed', stdin: false });
    const { json } = await rpc.unary('process.Process/List', {});
    const processes = json.processes as { pid: number }[];
    expect(processes.find((process) => process.pid === pid)).toEqual({ pid, tag: 'listed', config });
    expect(processes.some((process) => process.pid === ended)).toBe(false);
    stream.close();
    await driver.kill(pid);
  });
});

describe('SendSignal', () => {
  test('SIGKILL: the process is gone when the answer comes, and the end says so', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'sleep', args: ['60'] } });
    const answer = await driver.kill(pid);
    expect(answer).toEqual({ status: 200, json: {} });
    expect(await driver.alive(pid)).toBe(false);
    const { end } = await finish(stream);
    expect(end).toEqual({ exitCode: -1, status: 'signal: killed', error: 'signal: killed' });
  });

  test('an unknown or ended process is not found', async () => {
    const { pid } = await driver.run({ process: shell('true') });
    for (const process of [{ pid }, { pid: 4_000_000 }, { tag: 'nobody' }]) {
      const answer = await rpc.unary('process.Process/SendSignal', { process, signal: 'SIGNAL_SIGKILL' });
      expect(answer).toMatchObject({ status: 404, json: { code: 'not_found' } });
    }
  });

  test.each(['SIGNAL_UNSPECIFIED', 2])('signal %j is not supported', async (signal) => {
    const answer = await rpc.unary('process.Process/SendSignal', { process: { pid: 1 }, signal });
    expect(answer).toMatchObject({ status: 501, json: { code: 'unimplemented' } });
  });

  test('signals the one process only', async () => {
    const { stream, pid } = await driver.start({ process: shell('sleep 60 & echo $!; wait'), stdin: false });
    const child = Number(await untilOutput(stream, '\n'));
    await driver.kill(pid);
    expect(await driver.alive(child)).toBe(true);
    await driver.run({ process: shell(`kill -9 ${child}`) });
    stream.close();
  });
});

describe('input', () => {
  test('4 MiB arrive whole and in order', async () => {
    const data = Buffer.alloc(4 * 1024 * 1024, 'abcdefghijklmnopqrstuvwxyz');
    const { stream, pid } = await driver.start({ process: { cmd: 'sha256sum' } });
    const answer = await rpc.unary('process.Process/SendInput', {
      process: { pid },
      input: { stdin: data.toString('base64') },
    });
    expect(answer).toEqual({ status: 200, json: {} });
    await rpc.unary('process.Process/CloseStdin', { process: { pid } });
    expect(await untilOutput(stream, '\n')).toContain(createHash('sha256').update(data).digest('hex'));
    stream.close();
  });

  test('empty bytes are valid, closing twice too, input behind it is internal', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'sleep', args: ['60'] } });
    const send = (input: unknown) => rpc.unary('process.Process/SendInput', { process: { pid }, input });
    expect(await send({ stdin: '' })).toMatchObject({ status: 200 });
    for (let time = 0; time < 2; time++) {
      expect(await rpc.unary('process.Process/CloseStdin', { process: { pid } })).toMatchObject({ status: 200 });
    }
    expect(await send({ stdin: 'eA==' })).toMatchObject({ status: 500, json: { code: 'internal' } });
    expect(await send({ pty: 'eA==' })).toMatchObject({ status: 500, json: { code: 'internal' } });
    expect(await send({})).toMatchObject({ status: 400, json: { code: 'invalid_argument' } });
    stream.close();
    await driver.kill(pid);
    expect(await send({ stdin: 'eA==' })).toMatchObject({ status: 404, json: { code: 'not_found' } });
  });

  test('stdin that was not opened is internal', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'sleep', args: ['60'] }, stdin: false });
    expect(await rpc.unary('process.Process/SendInput', { process: { pid }, input: { stdin: 'eA==' } })).toMatchObject({
      status: 500,
      json: { code: 'internal' },
    });
    stream.close();
    await driver.kill(pid);
  });

  test('StreamInput writes what its messages carry', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'cat' } });
    const body = Buffer.concat([
      encodeFrame({ start: { process: { pid } } }),
      encodeFrame({ data: { input: { stdin: btoa('one ') } } }),
      encodeFrame({ keepalive: {} }),
      encodeFrame({ data: { input: { stdin: btoa('two') } } }),
    ]);
    const headers = { 'content-type': 'application/connect+json' };
    const answer = await envd.request('/process.Process/StreamInput', { method: 'POST', headers, body });
    expect(decodeFrames(answer.body)).toEqual([
      { flags: 0, json: {} },
      { flags: 2, json: {} },
    ]);
    await untilOutput(stream, 'one two');
    await rpc.unary('process.Process/CloseStdin', { process: { pid } });
    await stream.rest();
  });

  test.each([
    ['without a start event', [{ data: { input: { stdin: '' } } }], 'invalid_argument'],
    ['without any message', [], 'invalid_argument'],
    ['to an unknown process', [{ start: { process: { pid: 4_000_000 } } }], 'not_found'],
  ])('StreamInput %s is refused', async (_what, messages, code) => {
    const answer = await envd.request('/process.Process/StreamInput', {
      method: 'POST',
      headers: { 'content-type': 'application/connect+json' },
      body: Buffer.concat(messages.map((message) => encodeFrame(message))),
    });
    expect(decodeFrames(answer.body).at(-1)).toMatchObject({ flags: 2, json: { error: { code } } });
  });
});

describe('terminal', () => {
  test('has a size, takes input, follows a resize and ends clean', async () => {
    const { stream, pid } = await driver.start({
      process: { cmd: '/bin/sh', args: ['-i'], envs: { PS1: '> ', TERM: 'xterm-256color' } },
      pty: { size: { cols: 80, rows: 24 } },
    });
    const type = (text: string) =>
      rpc.unary('process.Process/SendInput', {
        process: { pid },
        input: { pty: Buffer.from(text).toString('base64') },
      });
    await type('stty size; tty\n');
    expect(await untilOutput(stream, '/dev/pts/')).toContain('24 80');
    const resize = { process: { pid }, pty: { size: { cols: 132, rows: 43 } } };
    expect(await rpc.unary('process.Process/Update', resize)).toEqual({ status: 200, json: {} });
    await type('stty size\n');
    await untilOutput(stream, '43 132');
    expect(await rpc.unary('process.Process/CloseStdin', { process: { pid } })).toMatchObject({
      status: 500,
      json: { code: 'unknown' },
    });
    expect(await rpc.unary('process.Process/SendInput', { process: { pid }, input: { stdin: 'eA==' } })).toMatchObject({
      json: { code: 'internal' },
    });
    await type('exit 7\n');
    const { end, error } = await finish(stream);
    expect(end).toMatchObject({ exitCode: 7, exited: true });
    expect(error).toBeUndefined();
  });

  test('a process without one cannot be resized', async () => {
    const { stream, pid } = await driver.start({ process: { cmd: 'sleep', args: ['60'] } });
    const answer = await rpc.unary('process.Process/Update', { process: { pid }, pty: { size: { cols: 1, rows: 1 } } });
    expect(answer).toMatchObject({ status: 400, json: { code: 'failed_precondition' } });
    stream.close();
    await driver.kill(pid);
  });
});
