import { join } from 'node:path/posix';
import { ENVD_VERSION } from '@agentenv/protocol';
import { Sandbox as SandboxCurrent } from 'e2b';
import { Sandbox as SandboxOld } from 'e2b-2-10';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type EnvdFixture, startEnvd } from './testing/envd-fixture.ts';
import { TOKEN } from './testing/http-client.ts';

/** The part of the interface used here is the same in both; the newer types describe it. */
const CLIENTS = [
  { version: 'e2b@2.51.0', Sandbox: SandboxCurrent },
  { version: 'e2b@2.10.4', Sandbox: SandboxOld as unknown as typeof SandboxCurrent },
];

let envd: EnvdFixture;
const directory = '/home/user/files';

beforeAll(async () => {
  envd = await startEnvd();
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

describe.each(CLIENTS)('$version', ({ version, Sandbox }) => {
  const sandbox = () =>
    new Sandbox({
      sandboxId: 'itest',
      sandboxDomain: 'sandbox.test',
      envdVersion: ENVD_VERSION,
      envdAccessToken: TOKEN,
      sandboxUrl: envd.url,
      apiKey: 'e2b_00',
    });
  const path = (name: string) => join(directory, version.replace(/[^\d]/g, ''), name);

  test('runs a command and has its output and exit code', async () => {
    const result = await sandbox().commands.run('echo out; echo err >&2');
    expect(result).toMatchObject({ stdout: 'out\n', stderr: 'err\n', exitCode: 0 });
  });

  test('a failing command is an exit error with the output', async () => {
    await expect(sandbox().commands.run('echo partly; exit 7')).rejects.toMatchObject({
      name: 'CommandExitError',
      exitCode: 7,
      stdout: 'partly\n',
    });
  });

  test('user, directory and variables', async () => {
    const { stdout } = await sandbox().commands.run('id -un; pwd; echo $X', {
      user: 'daemon',
      cwd: '/tmp',
      envs: { X: '1' },
    });
    expect(stdout).toBe('daemon\n/tmp\n1\n');
  });

  test('a time limit is a timeout error and ends the process', async () => {
    const marker = `29.${process.pid}${version.length}`;
    await expect(sandbox().commands.run(`exec sleep ${marker}`, { timeoutMs: 400 })).rejects.toMatchObject({
      name: 'TimeoutError',
    });
    await expect
      .poll(async () =>
        (await sandbox().commands.list()).filter(({ args }) => args.some((arg) => arg.includes(marker))),
      )
      .toEqual([]);
  });

  test('background: streamed output, list, reconnect by pid, stdin, kill', async () => {
    const command = await sandbox().commands.run('cat', { background: true, stdin: true });
    const listed = await sandbox().commands.list();
    expect(listed.find(({ pid }) => pid === command.pid)).toMatchObject({
      cmd: '/bin/bash',
      args: ['-l', '-c', 'cat'],
    });
    await command.disconnect();
    let output = '';
    const again = await sandbox().commands.connect(command.pid, {
      onStdout(text: string) {
        output += text;
      },
    });
    await sandbox().commands.sendStdin(command.pid, 'grüße\n');
    await expect.poll(() => output, { timeout: 10_000 }).toBe('grüße\n');
    expect(await again.kill()).toBe(true);
    await expect(again.wait()).rejects.toMatchObject({ exitCode: -1 });
    expect(await sandbox().commands.kill(command.pid)).toBe(false);
  });

  test('an unknown user and a missing directory are their errors', async () => {
    await expect(sandbox().commands.run('true', { user: 'nosuchuser' as 'root' })).rejects.toMatchObject({
      name: 'AuthenticationError',
    });
    await expect(sandbox().commands.run('true', { cwd: '/no/such' })).rejects.toMatchObject({
      name: expect.stringMatching(/InvalidArgumentError/),
      message: expect.stringContaining("cwd '/no/such' does not exist"),
    });
  });

  test('a terminal', async () => {
    let output = '';
    const terminal = await sandbox().pty.create({
      cols: 80,
      rows: 24,
      onData(data: Uint8Array) {
        output += Buffer.from(data).toString();
      },
    });
    await sandbox().pty.sendInput(terminal.pid, Buffer.from('stty size\n'));
    await expect.poll(() => output, { timeout: 10_000 }).toContain('24 80');
    await sandbox().pty.resize(terminal.pid, { cols: 100, rows: 30 });
    await sandbox().pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'));
    await expect.poll(() => output, { timeout: 10_000 }).toContain('30 100');
    expect((await terminal.wait()).exitCode).toBe(0);
  });

  test('a terminal is left alone by a client that goes away, and ended on demand', async () => {
    const onData = () => {};
    const terminal = await sandbox().pty.create({ cols: 80, rows: 24, onData });
    await terminal.disconnect();
    let output = '';
    const again = await sandbox().pty.connect(terminal.pid, {
      onData(data: Uint8Array) {
        output += Buffer.from(data).toString();
      },
    });
    await sandbox().pty.sendInput(terminal.pid, Buffer.from('echo still-$((40 + 2))\n'));
    await expect.poll(() => output, { timeout: 10_000 }).toContain('still-42');
    expect(await sandbox().pty.kill(terminal.pid)).toBe(true);
    await expect(again.wait()).rejects.toMatchObject({ exitCode: -1, error: 'signal: killed' });
    expect(await sandbox().pty.kill(terminal.pid)).toBe(false);
  });

  test('heredocs, quotes and long commands are what they are; too long a one is told so', async () => {
    const text = 'a \'b\' "c" $d `e` \\ ü\n\tend';
    const { stdout } = await sandbox().commands.run(`cat <<'MARK'\n${text}\nMARK`);
    expect(stdout).toBe(`${text}\n`);
    const long = await sandbox().commands.run(`printf %s ${'x'.repeat(120_000)} | wc -c`);
    expect(long.stdout.trim()).toBe('120000');
    await expect(sandbox().commands.run(`: ${'x'.repeat(200_000)}`)).rejects.toMatchObject({
      name: 'InvalidArgumentError',
      message: expect.stringMatching(/the limit is 131071/),
    });
  });

  test('what a command printed comes before the error of its time limit', async () => {
    let output = '';
    const run = sandbox().commands.run('echo partial; exec sleep 60', {
      timeoutMs: 500,
      onStdout(data: string) {
        output += data;
      },
    });
    await expect(run).rejects.toMatchObject({ name: 'TimeoutError' });
    expect(output).toBe('partial\n');
  });

  test('a daemon outlives the command that started it', async () => {
    const { stdout } = await sandbox().commands.run('setsid sleep 600 >/dev/null 2>&1 & echo $!');
    const pid = Number(stdout);
    expect((await sandbox().commands.run(`kill -0 ${pid} && echo alive`)).stdout).toBe('alive\n');
    await sandbox().commands.run(`kill ${pid}`);
  });

  test('files: write in every form, read in every form, several at once', async () => {
    const { files } = sandbox();
    expect(await files.write(path('a/hello.txt'), 'Grüße')).toMatchObject({
      name: 'hello.txt',
      path: path('a/hello.txt'),
    });
    expect(await files.read(path('a/hello.txt'))).toBe('Grüße');
    const bytes = new Uint8Array(100_000).map((_, index) => (index * 7919) & 0xff);
    await files.write(path('bytes'), bytes.buffer);
    expect(Buffer.from(await files.read(path('bytes'), { format: 'bytes' })).equals(bytes)).toBe(true);
    await files.write(path('blob'), new Blob([bytes]));
    expect(await (await files.read(path('blob'), { format: 'blob' })).arrayBuffer()).toEqual(bytes.buffer);
    await files.write(path('stream'), new Blob([bytes]).stream());
    const chunks: Uint8Array[] = [];
    for await (const chunk of await files.read(path('stream'), { format: 'stream' })) chunks.push(chunk);
    expect(Buffer.concat(chunks).equals(bytes)).toBe(true);
    await files.write([
      { path: path('many/1'), data: 'one' },
      { path: path('many/2'), data: new Blob(['two']) },
    ]);
    expect(await files.read(path('many/1'))).toBe('one');
    expect(await files.read(path('many/2'))).toBe('two');
    await files.write(path('empty'), '');
    expect(await files.read(path('empty'))).toBe('');
    expect(Buffer.from(await files.read(path('empty'), { format: 'bytes' }))).toHaveLength(0);
  });

  test('files: exists, info, list, rename, makeDir, remove', async () => {
    const { files } = sandbox();
    expect(await files.exists(path('tree'))).toBe(false);
    expect(await files.makeDir(path('tree/sub'))).toBe(true);
    expect(await files.makeDir(path('tree/sub'))).toBe(false);
    await files.write(path('tree/b'), 'b');
    await files.write(path('tree/a'), 'aa');
    expect((await files.list(path('tree'))).map(({ name, type }) => [name, type])).toEqual([
      ['a', 'file'],
      ['b', 'file'],
      ['sub', 'dir'],
    ]);
    expect(await files.getInfo(path('tree/a'))).toMatchObject({
      name: 'a',
      path: path('tree/a'),
      size: 2,
      mode: 0o644,
      permissions: '-rw-r--r--',
      owner: 'user',
      group: 'user',
    });
    expect(await files.rename(path('tree/a'), path('tree/sub/moved'))).toMatchObject({ path: path('tree/sub/moved') });
    expect(await files.exists(path('tree/a'))).toBe(false);
    await files.remove(path('tree'));
    await files.remove(path('tree'));
    expect(await files.exists(path('tree'))).toBe(false);
    await expect(files.read(path('tree/a'))).rejects.toMatchObject({ name: expect.stringMatching(/NotFound/) });
    await expect(files.list(path('tree'))).rejects.toMatchObject({ name: expect.stringMatching(/NotFound/) });
    await expect(files.getInfo(path('tree'))).rejects.toMatchObject({ name: expect.stringMatching(/NotFound/) });
  });

  test('watching a directory', async () => {
    const { files } = sandbox();
    await files.makeDir(path('watched'));
    const seen: string[] = [];
    const watch = await files.watchDir(
      path('watched'),
      (event) => {
        seen.push(`${event.type} ${event.name}`);
      },
      { recursive: true },
    );
    await files.makeDir(path('watched/sub'));
    await files.write(path('watched/sub/file'), 'x');
    await expect
      .poll(() => seen, { timeout: 10_000 })
      .toEqual(expect.arrayContaining(['create sub', 'create sub/file']));
    await watch.stop();
  });

  test('is running', async () => {
    expect(await sandbox().isRunning()).toBe(true);
  });
});

describe('e2b@2.51.0 only', () => {
  const sandbox = () =>
    new SandboxCurrent({
      sandboxId: 'itest',
      sandboxDomain: 'sandbox.test',
      envdVersion: ENVD_VERSION,
      envdAccessToken: TOKEN,
      sandboxUrl: envd.url,
      apiKey: 'e2b_00',
    });

  test('closing stdin ends cat', async () => {
    const command = await sandbox().commands.run('cat', { background: true, stdin: true });
    await sandbox().commands.sendStdin(command.pid, 'x');
    await sandbox().commands.closeStdin(command.pid);
    expect(await command.wait()).toMatchObject({ stdout: 'x', exitCode: 0 });
  });

  test('octet-stream and gzip uploads, and metadata', async () => {
    const { files } = sandbox();
    const file = join(directory, 'new-forms');
    const text = 'compress me\n'.repeat(10_000);
    const written = await files.write(file, text, { gzip: true, metadata: { author: 'Jo' } });
    expect(written).toMatchObject({ metadata: { author: 'Jo' } });
    expect(await files.read(file, { gzip: true })).toBe(text);
    expect((await files.getInfo(file)).metadata).toEqual({ author: 'Jo' });
    await files.write(file, text, { useOctetStream: true });
    expect((await files.getInfo(file)).metadata ?? {}).toEqual({});
  });

  test('signed URLs work without the token and only as signed', async () => {
    await sandbox().files.write(join(directory, 'signed'), 'content');
    const url = await sandbox().downloadUrl(join(directory, 'signed'), { useSignatureExpiration: 60 });
    expect(await (await fetch(url)).text()).toBe('content');
    expect((await fetch(url.replace('signed&', 'other&'))).status).toBe(401);
    const upload = await sandbox().uploadUrl(join(directory, 'uploaded'), { useSignatureExpiration: 60 });
    const form = new FormData();
    form.append('file', new Blob(['sent']), 'x');
    expect((await fetch(upload, { method: 'POST', body: form })).status).toBe(200);
    expect(await sandbox().files.read(join(directory, 'uploaded'))).toBe('sent');
  });

  test('a sandbox that dies in the middle of a command is a timeout error naming its end', async () => {
    await using doomed = await startEnvd();
    const dying = new SandboxCurrent({
      sandboxId: 'itest',
      sandboxDomain: 'sandbox.test',
      envdVersion: ENVD_VERSION,
      envdAccessToken: TOKEN,
      sandboxUrl: doomed.url,
      apiKey: 'e2b_00',
    });
    const command = await dying.commands.run('sleep 60', { background: true });
    const wait = expect(command.wait()).rejects.toMatchObject({ name: 'TimeoutError' });
    await doomed.guest.agent[Symbol.asyncDispose]();
    await wait;
    expect(await dying.isRunning()).toBe(false);
  });
});
