import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { CLIENTS } from './lib/clients.ts';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer();
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  await server[Symbol.asyncDispose]();
});

describe.each(CLIENTS)('$version', ({ Sandbox, old }) => {
  let sandbox: InstanceType<typeof Sandbox>;
  beforeAll(async () => {
    sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000, envs: { GREETING: 'hello' } });
  });
  afterAll(async () => {
    await sandbox.kill();
  });

  describe('lifecycle', () => {
    it('creates, is listed with its metadata, and is gone after kill', async () => {
      const mine = await Sandbox.create('base', {
        ...server.sdk,
        timeoutMs: 60_000,
        metadata: { 'k 1': 'v&=1', plain: 'x' },
      });
      onTestFinished(async () => {
        await mine.kill();
      });
      expect(mine.sandboxId).toMatch(/^i[a-z0-9]{20}$/);
      const page = await Sandbox.list({ ...server.sdk, query: { metadata: { 'k 1': 'v&=1' } } }).nextItems();
      expect(page.map((item) => item.sandboxId)).toEqual([mine.sandboxId]);
      expect(page[0]).toMatchObject({ state: 'running', metadata: { 'k 1': 'v&=1', plain: 'x' } });
      expect(await mine.isRunning()).toBe(true);
      // The old client's handle answers nothing.
      expect(await mine.kill()).toBe(old ? undefined : true);
      expect(await mine.isRunning()).toBe(false);
      expect(await Sandbox.kill(mine.sandboxId, server.sdk)).toBe(false);
      const after = await Sandbox.list({ ...server.sdk, query: { metadata: { plain: 'x' } } }).nextItems();
      expect(after).toEqual([]);
    });

    it('connects to a running sandbox without shortening its time', async () => {
      const before = await sandbox.getInfo();
      const again = await Sandbox.connect(sandbox.sandboxId, { ...server.sdk, timeoutMs: 5_000 });
      expect((await again.commands.run('echo connected')).stdout).toBe('connected\n');
      const after = await sandbox.getInfo();
      expect(after.endAt.getTime()).toBe(before.endAt.getTime());
    });

    it('pauses and resumes: the same process goes on where it was', async () => {
      const mine = await Sandbox.create('base', { ...server.sdk, timeoutMs: 300_000 });
      onTestFinished(async () => {
        await mine.kill();
      });
      await mine.files.write('/etc/hosts', '127.0.0.1 localhost mine', { user: 'root' });
      const count = 'i=0; while true; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done';
      const { pid } = await mine.commands.run(count, { background: true, timeoutMs: 0 });
      const counter = async () => Number((await mine.commands.run('cat /tmp/count || echo 0')).stdout);
      for (let cycle = 0; cycle < 2; cycle++) {
        const before = await waitUntil(counter, { timeout: 10_000, what: 'the counter' });
        expect(await mine.betaPause(server.sdk)).toBe(true);
        expect(await mine.isRunning()).toBe(false);
        expect((await mine.getInfo()).state).toBe('paused');
        await Sandbox.connect(mine.sandboxId, { ...server.sdk, timeoutMs: 300_000 });
        const more = async () => (await counter()) > before;
        await waitUntil(more, { timeout: 10_000, what: 'the counter to go on' });
        expect((await mine.commands.list()).map((process) => process.pid)).toContain(pid);
        expect(await mine.files.read('/etc/hosts')).toBe('127.0.0.1 localhost mine');
        const skew = Number((await mine.commands.run('date +%s%3N')).stdout) - Date.now();
        expect(Math.abs(skew)).toBeLessThan(2_000);
      }
    });

    it('sets the timeout and ends the sandbox when it passes', async () => {
      const mine = await Sandbox.create('base', { ...server.sdk, timeoutMs: 300_000 });
      onTestFinished(async () => {
        await mine.kill();
      });
      const asked = Date.now();
      await mine.setTimeout(2_000);
      await waitUntil(async () => !(await mine.isRunning()), { timeout: 10_000, what: 'the sandbox to end' });
      const late = Date.now() - asked - 2_000;
      expect(Math.abs(late)).toBeLessThan(1_500);
    });

    it('fails on an unknown template and on an unknown sandbox with the errors clients know', async () => {
      await expect(Sandbox.create('no-such-template', server.sdk)).rejects.toThrow(/no-such-template.*not found/);
      await expect(Sandbox.connect('iaaaaaaaaaaaaaaaaaaaa', server.sdk)).rejects.toThrow(/not found/i);
    });
  });

  describe('commands', () => {
    it('runs in the foreground with exit code, stdout and stderr apart', async () => {
      const result = await sandbox.commands.run('echo out; echo err >&2');
      expect(result).toMatchObject({ exitCode: 0, stdout: 'out\n', stderr: 'err\n' });
      await expect(sandbox.commands.run('echo partial; exit 3')).rejects.toMatchObject({
        exitCode: 3,
        stdout: 'partial\n',
      });
    });

    it('runs as user in its home by default, and as root in another directory on demand', async () => {
      expect((await sandbox.commands.run('whoami; pwd; id -u')).stdout).toBe('user\n/home/user\n1000\n');
      const root = await sandbox.commands.run('whoami; pwd', { user: 'root', cwd: '/tmp' });
      expect(root.stdout).toBe('root\n/tmp\n');
      await expect(sandbox.commands.run('true', { cwd: '/no/such/dir' })).rejects.toThrow(
        /cwd '\/no\/such\/dir' does not exist/,
      );
      await expect(sandbox.commands.run('true', { user: 'nobody-here' })).rejects.toThrow(/nobody-here/);
    });

    it('passes sandbox-wide and per-command environment variables', async () => {
      const result = await sandbox.commands.run('echo "$GREETING $NAME $E2B_SANDBOX $E2B_SANDBOX_ID"', {
        envs: { NAME: 'wörld $x "q"' },
      });
      expect(result.stdout).toBe(`hello wörld $x "q" true ${sandbox.sandboxId}\n`);
    });

    it('streams output while the command runs', async () => {
      const seen: { text: string; at: number }[] = [];
      await sandbox.commands.run('echo first; sleep 1; echo second', {
        onStdout: (text) => {
          seen.push({ text, at: performance.now() });
        },
      });
      expect(seen.map(({ text }) => text).join('')).toBe('first\nsecond\n');
      expect((seen.at(-1)?.at ?? 0) - (seen[0]?.at ?? 0)).toBeGreaterThan(700);
    });

    it('feeds stdin to a background command and ends it with EOF', async () => {
      const handle = await sandbox.commands.run('cat; echo done', { background: true, stdin: true });
      await sandbox.commands.sendStdin(handle.pid, 'typed ');
      await sandbox.commands.sendStdin(handle.pid, 'text\n');
      if ('closeStdin' in sandbox.commands) {
        await sandbox.commands.closeStdin(handle.pid);
        expect((await handle.wait()).stdout).toBe('typed text\ndone\n');
      } else {
        expect(await handle.kill()).toBe(true);
      }
    });

    it('sees EOF at once on stdin that was not asked for', async () => {
      expect((await sandbox.commands.run('cat; echo eof', { timeoutMs: 10_000 })).stdout).toBe('eof\n');
    });

    it('kills a command at its time limit and keeps what it printed', async () => {
      let printed = '';
      const run = sandbox.commands.run('echo before; sleep 60', {
        timeoutMs: 1_500,
        onStdout: (text) => {
          printed += text;
        },
      });
      await expect(run).rejects.toThrow(/timeout|deadline/i);
      expect(printed).toBe('before\n');
      await waitUntil(
        async () => !(await sandbox.commands.list()).some(({ args }) => args.join(' ').includes('sleep 60')),
        {
          timeout: 5_000,
          what: 'the killed command to leave the list',
        },
      );
    });

    it('lists commands, reports a kill as signal, and finds nothing to kill twice', async () => {
      const handle = await sandbox.commands.run('sleep 300', { background: true });
      const listed = (await sandbox.commands.list()).find(({ pid }) => pid === handle.pid);
      expect(listed).toMatchObject({ cmd: '/bin/bash', args: ['-l', '-c', 'sleep 300'] });
      expect(await handle.kill()).toBe(true);
      await expect(handle.wait()).rejects.toMatchObject({ exitCode: -1, error: 'signal: killed' });
      expect(await sandbox.commands.kill(handle.pid)).toBe(false);
      await expect(sandbox.commands.run(`kill -0 ${handle.pid}`)).rejects.toMatchObject({ exitCode: 1 });
    });

    it('goes on when its client goes away, and can be taken up by pid', async () => {
      const handle = await sandbox.commands.run('for i in $(seq 1 400); do echo tick $i; sleep 0.05; done', {
        background: true,
        timeoutMs: 0,
      });
      await handle.disconnect();
      const other = await Sandbox.connect(sandbox.sandboxId, server.sdk);
      let heard = '';
      const taken = await other.commands.connect(handle.pid, {
        onStdout: (text) => {
          heard += text;
        },
      });
      await waitUntil(() => /tick \d+\ntick \d+\n/.test(heard), { timeout: 10_000, what: 'live output' });
      expect(await taken.kill()).toBe(true);
    });

    it('delivers a large output complete and in order, and its UTF-8 whole', async () => {
      // The old client decodes every chunk by itself, wherever it was cut.
      const text = old ? 'plain' : 'äöü€😀';
      const result = await sandbox.commands.run(`python3 -c 'print("${text}" * 20000)'; seq 1 50000`);
      const [first, ...numbers] = result.stdout.split('\n');
      expect(first === text.repeat(20000)).toBe(true);
      expect(numbers.slice(0, -1)).toEqual(Array.from({ length: 50000 }, (_, index) => String(index + 1)));
    });
  });

  describe('files', () => {
    it.each([
      ['text', 'plain text\nwith ünïcode'],
      ['an empty string', ''],
    ])('writes and reads %s', async (_, content) => {
      const info = await sandbox.files.write('notes/today.txt', content);
      expect(info).toMatchObject({ name: 'today.txt', path: '/home/user/notes/today.txt', type: 'file' });
      expect(await sandbox.files.read('notes/today.txt')).toBe(content);
      const listed = await sandbox.commands.run('stat -c "%U %a %s" notes/today.txt');
      expect(listed.stdout).toBe(`user 644 ${Buffer.byteLength(content)}\n`);
    });

    it('writes bytes from every source type and reads them as bytes, blob and stream', async () => {
      const bytes = Uint8Array.from({ length: 70_000 }, (_, index) => (index * 7) % 256);
      const sources = { buffer: bytes.buffer, blob: new Blob([bytes]), stream: new Blob([bytes]).stream() };
      for (const [name, data] of Object.entries(sources)) {
        await sandbox.files.write(`/tmp/${name}.bin`, data);
        const back = await sandbox.files.read(`/tmp/${name}.bin`, { format: 'bytes' });
        expect(Buffer.compare(back, bytes)).toBe(0);
      }
      const blob = await sandbox.files.read('/tmp/blob.bin', { format: 'blob' });
      expect(Buffer.compare(Buffer.from(await blob.arrayBuffer()), bytes)).toBe(0);
      let size = 0;
      for await (const chunk of await sandbox.files.read('/tmp/blob.bin', { format: 'stream' })) size += chunk.length;
      expect(size).toBe(bytes.length);
    });

    it('writes several files in one request', async () => {
      const infos = await sandbox.files.write([
        { path: 'many/a.txt', data: 'A' },
        { path: 'many/deep/er/b.txt', data: 'B' },
        { path: '/tmp/c.txt', data: new Blob(['C']) },
      ]);
      expect(infos.map(({ path }) => path)).toEqual([
        '/home/user/many/a.txt',
        '/home/user/many/deep/er/b.txt',
        '/tmp/c.txt',
      ]);
      expect(await sandbox.files.read('many/deep/er/b.txt')).toBe('B');
    });

    it('writes as another user and refuses what cannot be', async () => {
      await sandbox.files.write('root-file.txt', 'r', { user: 'root' });
      expect((await sandbox.commands.run('stat -c %U:%G /root/root-file.txt', { user: 'root' })).stdout).toBe(
        'root:root\n',
      );
      await expect(sandbox.files.read('does/not/exist')).rejects.toThrow(/does not exist/);
      await expect(sandbox.files.read('/tmp')).rejects.toThrow();
      await expect(sandbox.files.write('/tmp', 'x')).rejects.toThrow();
      await expect(sandbox.files.read('x', { user: 'ghost' })).rejects.toThrow(/ghost/);
    });
  });
});

describe('every body form of POST /files', () => {
  it('answers alike for multipart with and without filename, octet-stream, chunked and gzip', async () => {
    const { Sandbox } = CLIENTS[0];
    const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 120_000 });
    onTestFinished(async () => {
      await sandbox.kill();
    });
    const created = (await (await server.api(`/sandboxes/${sandbox.sandboxId}`)).json()) as { envdAccessToken: string };
    const headers = {
      'e2b-sandbox-id': sandbox.sandboxId,
      'e2b-sandbox-port': '49983',
      'x-access-token': created.envdAccessToken,
    };
    const post = (path: string, init: RequestInit & { duplex?: 'half' }) =>
      fetch(`${server.url}/files?path=${encodeURIComponent(path)}`, {
        method: 'POST',
        ...init,
        headers: { ...headers, ...(init.headers as Record<string, string>) },
      });
    // Without line ends: a form field without a filename has them normalised by the client.
    const content = 'the same bytes '.repeat(1000);
    const withName = new FormData();
    withName.append('file', new Blob([content]), 'dir/name.txt');
    const plainField = new FormData();
    plainField.append('file', content);
    const octets = { 'content-type': 'application/octet-stream' };
    const forms: Record<string, RequestInit & { duplex?: 'half' }> = {
      'multipart with filename': { body: withName },
      'multipart without filename': { body: plainField },
      'octet-stream': { body: content, headers: octets },
      'chunked octet-stream': { body: new Blob([content]).stream(), headers: octets, duplex: 'half' },
      'gzip octet-stream': { body: gzipSync(content), headers: { ...octets, 'content-encoding': 'gzip' } },
    };
    for (const [name, init] of Object.entries(forms)) {
      const path = `/tmp/${name.replaceAll(' ', '-')}`;
      const response = await post(path, init);
      expect(response.status, name).toBe(200);
      expect(await response.json(), name).toEqual([{ name: path.slice(5), path, type: 'file' }]);
      expect((await sandbox.files.read(path)) === content, name).toBe(true);
    }
    expect((await post('/tmp/x', { body: '{}', headers: { 'content-type': 'application/json' } })).status).toBe(400);
    expect(
      (await post('/tmp/x', { body: 'not gzip', headers: { ...octets, 'content-encoding': 'gzip' } })).status,
    ).toBe(400);
  });
});
