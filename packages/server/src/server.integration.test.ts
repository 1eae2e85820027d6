import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Sandbox as CurrentSandbox } from 'e2b';
import { Sandbox as OldSandbox } from 'e2b-2-10';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ServerProcess, startServerProcess } from './testing/server-process.ts';

const KEY = `e2b_${'c0ffee'.repeat(8)}`;

describe('a server on the fake backend', () => {
  let server: ServerProcess;
  let url: string;
  beforeAll(async () => {
    server = await startServerProcess({ environment: { AENV_API_KEY: KEY } });
    url = await server.ready();
  }, 90_000);
  afterAll(() => server[Symbol.asyncDispose]());

  const api = (path: string, init: RequestInit = {}) =>
    fetch(`${url}${path}`, { ...init, headers: { 'x-api-key': KEY, ...(init.headers as Record<string, string>) } });

  describe.each([
    ['e2b@2.51.0', CurrentSandbox],
    // The part of the interface that is used here is the same in both; the newer types describe it.
    ['e2b@2.10.4', OldSandbox as unknown as typeof CurrentSandbox],
  ])('serves %s', (version, Sandbox) => {
    const connection = () => ({ apiKey: KEY, apiUrl: url, sandboxUrl: url });

    it('from create to kill', async () => {
      const metadata = { client: version, 'k 1': 'v&=1' };
      const sandbox = await Sandbox.create('base', {
        ...connection(),
        metadata,
        envs: { GREETING: 'hello' },
        timeoutMs: 60_000,
      });
      const { sandboxId } = sandbox;
      expect(sandboxId).toMatch(/^i[a-z0-9]{20}$/);
      expect(await sandbox.isRunning()).toBe(true);

      const listed = await Sandbox.list({ ...connection(), query: { metadata } }).nextItems();
      expect(listed).toMatchObject([{ sandboxId, name: 'base', metadata, state: 'running' }]);
      const info = await sandbox.getInfo();
      expect(info).toMatchObject({ sandboxId, metadata, cpuCount: 2, memoryMB: 1024 });
      // The timeout begins when the sandbox is ready, some time after its start.
      const life = info.endAt.getTime() - info.startedAt.getTime();
      expect(life).toBeGreaterThanOrEqual(60_000);
      expect(life).toBeLessThan(120_000);

      await sandbox.setTimeout(600_000);
      const later = await Sandbox.connect(sandboxId, { ...connection(), timeoutMs: 5_000 });
      const extended = await later.getInfo();
      expect(extended.endAt.getTime() - Date.now()).toBeGreaterThan(590_000);

      const result = await sandbox.commands.run('printenv GREETING');
      expect(result).toMatchObject({ exitCode: 0, stdout: 'hello\n' });

      await sandbox.files.write('note.txt', 'kept');
      expect(await sandbox.files.read('note.txt')).toBe('kept');

      expect(await Sandbox.kill(sandboxId, connection())).toBe(true);
      expect(await sandbox.isRunning()).toBe(false);
      expect(await Sandbox.kill(sandboxId, connection())).toBe(false);
      expect(await Sandbox.list({ ...connection(), query: { metadata } }).nextItems()).toEqual([]);
    });

    it('pauses and resumes with everything that ran', async () => {
      const metadata = { paused: version };
      const sandbox = await Sandbox.create('base', { ...connection(), metadata, timeoutMs: 60_000 });
      const { sandboxId } = sandbox;
      await sandbox.files.write('note.txt', 'kept');
      const { pid } = await sandbox.commands.run('sleep 600', { background: true, timeoutMs: 0 });
      // Both clients have it; the older one needs to be told again where the server is.
      expect(await sandbox.betaPause(connection())).toBe(true);
      expect(await sandbox.betaPause(connection())).toBe(false);
      expect(await sandbox.isRunning()).toBe(false);
      expect((await sandbox.getInfo()).state).toBe('paused');
      const paused = Sandbox.list({ ...connection(), query: { metadata, state: ['paused'] } });
      expect(await paused.nextItems()).toMatchObject([{ sandboxId, state: 'paused', metadata }]);

      const resumed = await Sandbox.connect(sandboxId, { ...connection(), timeoutMs: 30_000 });
      expect(await resumed.isRunning()).toBe(true);
      expect(await resumed.files.read('note.txt')).toBe('kept');
      expect((await resumed.commands.list()).map((process) => process.pid)).toContain(pid);
      const command = await resumed.commands.connect(pid);
      expect(await command.kill()).toBe(true);
      // A handle from before goes on: its token is the same.
      expect(await sandbox.files.read('note.txt')).toBe('kept');
      expect(await Sandbox.kill(sandboxId, connection())).toBe(true);
    });

    it('and tells what is wrong', async () => {
      await expect(Sandbox.create('base', { ...connection(), apiKey: 'e2b_00' })).rejects.toThrow(/not valid|401/);
      await expect(Sandbox.create('unknown-template', connection())).rejects.toThrow(/'unknown-template' not found/);
      await expect(Sandbox.connect('inever0000000000there', connection())).rejects.toThrow(/not found/i);
    });
  });

  it('snapshots through the client: kept, used, listed and deleted by the id it was told', async () => {
    const connection = { apiKey: KEY, apiUrl: url, sandboxUrl: url };
    const sandbox = await CurrentSandbox.create('base', { ...connection, envs: { KEPT: 'yes' } });
    const { sandboxId } = sandbox;
    await sandbox.files.write('note.txt', 'one');
    const { pid } = await sandbox.commands.run('sleep 600', { background: true, timeoutMs: 0 });
    const unnamed = await sandbox.createSnapshot();
    expect(unnamed.snapshotId).toMatch(/^i[a-z0-9]{20}:default$/);
    const named = await sandbox.createSnapshot({ name: 'client-data' });
    expect(named).toMatchObject({ snapshotId: 'default/client-data:default', names: ['default/client-data:default'] });
    await sandbox.files.write('note.txt', 'two');
    const newer = await sandbox.createSnapshot({ name: 'client-data' });
    expect(newer.snapshotId).toBe(named.snapshotId);
    await expect(sandbox.createSnapshot({ name: 'base' })).rejects.toThrow(/belongs to a template/);
    await expect(CurrentSandbox.createSnapshot('inever0000000000there', connection)).rejects.toThrow(/not found/i);

    const pages = CurrentSandbox.listSnapshots({ ...connection, sandboxId, limit: 2 });
    const listed: string[] = [];
    while (pages.hasNext) listed.push(...(await pages.nextItems()).map(({ snapshotId }) => snapshotId));
    expect(listed).toEqual([newer.snapshotId, expect.stringMatching(/^[0-9a-f-]{36}:default$/), unnamed.snapshotId]);
    expect(await CurrentSandbox.kill(sandboxId, connection)).toBe(true);
    const byName = CurrentSandbox.listSnapshots({ ...connection, name: 'client-data' });
    expect((await byName.nextItems()).map(({ snapshotId }) => snapshotId)).toEqual(listed.slice(0, 2));

    for (const [snapshotId, note] of [
      [listed[0] ?? '', 'two'],
      [listed[1] ?? '', 'one'],
      [unnamed.snapshotId, 'one'],
    ] as const) {
      const child = await CurrentSandbox.create(snapshotId, connection);
      expect(await child.files.read('note.txt')).toBe(note);
      expect((await child.commands.list()).map((process) => process.pid)).toContain(pid);
      expect((await child.commands.run('printenv KEPT')).stdout).toBe('yes\n');
      // The answer is the 400 of something in use.
      await expect(CurrentSandbox.deleteSnapshot(snapshotId, connection)).rejects.toThrow(/in use/);
      await child.pause(connection);
      await expect(CurrentSandbox.deleteSnapshot(snapshotId, connection)).rejects.toThrow(/in use/);
      await child.kill();
      expect(await CurrentSandbox.deleteSnapshot(snapshotId, connection)).toBe(true);
      expect(await CurrentSandbox.deleteSnapshot(snapshotId, connection)).toBe(false);
      await expect(CurrentSandbox.create(snapshotId, connection)).rejects.toThrow(/not found|does not exist/);
    }
  });

  it('pages a list of many through the client', async () => {
    const connection = { apiKey: KEY, apiUrl: url, sandboxUrl: url };
    const metadata = { many: 'yes' };
    const sandboxes = await Promise.all(
      Array.from({ length: 5 }, () => CurrentSandbox.create('base', { ...connection, metadata })),
    );
    const pages = CurrentSandbox.list({ ...connection, query: { metadata }, limit: 2 });
    const seen: string[] = [];
    while (pages.hasNext) seen.push(...(await pages.nextItems()).map(({ sandboxId }) => sandboxId));
    expect(seen.toSorted()).toEqual(sandboxes.map(({ sandboxId }) => sandboxId).toSorted());
    await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
  });

  it('ends a sandbox at its timeout', async () => {
    const created = await api('/v2/sandboxes', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ templateID: 'base', timeout: 1 }),
    });
    const { sandboxID } = (await created.json()) as { sandboxID: string };
    const limit = AbortSignal.timeout(20_000);
    while ((await api(`/sandboxes/${sandboxID}`)).status !== 404) limit.throwIfAborted();
    const gone = await fetch(`${url}/health`, {
      headers: { 'e2b-sandbox-id': sandboxID, 'e2b-sandbox-port': '49983' },
    });
    expect(gone.status).toBe(502);
    expect(await gone.json()).toEqual({ sandboxId: sandboxID, message: 'The sandbox was not found', code: 502 });
  });

  it('answers its template and its metrics', async () => {
    expect(await (await api('/templates')).json()).toMatchObject([{ names: ['base'], buildStatus: 'ready' }]);
    expect(await (await api('/templates/aliases/base')).json()).toMatchObject({ public: false });
    const metrics = await (await fetch(`${url}/metrics`)).text();
    expect(metrics).toMatch(/agentenv_sandbox_creates_total\{result="ok",code=""\} [1-9]/);
    expect(metrics).toMatch(/agentenv_sandboxes\{state="running"\} 0/);
  });

  it('stays small under a flood of hostile requests', { timeout: 120_000 }, async () => {
    const resident = async () => {
      const status = await readFile(`/proc/${server.process.pid}/status`, 'utf8');
      return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
    };
    const attacks: readonly (readonly [path: string, init: RequestInit])[] = [
      [
        '/v2/sandboxes',
        { method: 'POST', headers: { 'content-type': 'application/json' }, body: 'x'.repeat(2_000_000) },
      ],
      [
        '/v2/sandboxes',
        { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"a":'.repeat(50_000) },
      ],
      [`/sandboxes/${'x'.repeat(8_000)}`, {}],
      [`/v2/sandboxes?metadata=${'%25'.repeat(4_000)}`, {}],
      ['/nowhere', { method: 'POST', body: 'y'.repeat(500_000) }],
      [
        '/health',
        { method: 'POST', headers: { 'e2b-sandbox-id': 'inone', 'e2b-sandbox-port': '1' }, body: 'z'.repeat(500_000) },
      ],
    ];
    const round = async () => {
      for (const [path, init] of attacks) {
        // The server may close the connection before it has read all of a body that is too large.
        const response = await api(path, init).catch(() => undefined);
        if (response === undefined) continue;
        expect(response.status === 502 || (response.status >= 400 && response.status < 500)).toBe(true);
        await response.arrayBuffer();
      }
    };
    for (let count = 0; count < 3; count++) await round();
    const before = await resident();
    for (let count = 0; count < 25; count++) await Promise.all([round(), round()]);
    expect((await resident()) - before).toBeLessThan(64);
    expect((await fetch(`${url}/health`)).status).toBe(204);
  });

  it('never shows the key', () => {
    expect(server.output()).toContain('"apiKeySource":"AENV_API_KEY"');
    expect(server.output()).not.toContain(KEY);
  });
});

describe('the life of a server', () => {
  it('ends by SIGTERM: streams are reset, what ran is paused, nothing else is left', { timeout: 90_000 }, async () => {
    const scratch = await mkdtemp(join(tmpdir(), 'aenv-server-'));
    try {
      await using server = await startServerProcess({ scratch });
      const url = await server.ready();
      const apiKey = (await readFile(join(server.home, 'secrets/api-key'), 'utf8')).trim();
      const sandbox = await CurrentSandbox.create('base', { apiKey, apiUrl: url, sandboxUrl: url });
      const command = await sandbox.commands.run('sleep 600', { background: true, timeoutMs: 0 });
      const waiting = command.wait().catch((error: Error) => error);
      expect(await server.end('SIGTERM')).toBe(0);
      expect(await waiting).toBeInstanceOf(Error);
      expect(server.output()).toContain('the server has ended');
      expect(server.output()).not.toContain('"level":"error"');
      expect((await readdir(scratch)).toSorted()).toEqual(['config.toml', 'home']);

      await using again = await startServerProcess({ scratch });
      const connection = { apiKey, apiUrl: await again.ready(), sandboxUrl: await again.ready() };
      const listed = await CurrentSandbox.list(connection).nextItems();
      expect(listed.map(({ sandboxId, state }) => [sandboxId, state])).toEqual([[sandbox.sandboxId, 'paused']]);
      const same = await CurrentSandbox.connect(sandbox.sandboxId, connection);
      expect((await same.commands.list()).map(({ pid }) => pid)).toEqual([command.pid]);
      expect(await same.kill()).toBe(true);
      expect(await again.end('SIGINT')).toBe(0);
    } finally {
      await rm(scratch, { recursive: true, force: true });
    }
  });

  it.each(['SIGKILL', 'SIGTERM'] as const)(
    'keeps what is paused over %s, with its token and its processes, and wants its seed',
    { timeout: 90_000 },
    async (signal) => {
      const scratch = await mkdtemp(join(tmpdir(), 'aenv-server-'));
      const environment = { AENV_API_KEY: KEY };
      try {
        await using server = await startServerProcess({ scratch, environment });
        const url = await server.ready();
        const connection = { apiKey: KEY, apiUrl: url, sandboxUrl: url };
        const sandbox = await CurrentSandbox.create('base', connection);
        const { sandboxId } = sandbox;
        await sandbox.files.write('note.txt', 'kept');
        const { pid } = await sandbox.commands.run('sleep 600', { background: true, timeoutMs: 0 });
        await sandbox.pause();
        await server.end(signal);

        const seed = join(server.home, 'secrets/sandbox-access-token-hash-seed');
        const text = await readFile(seed, 'utf8');
        await rm(seed);
        await using refused = await startServerProcess({ scratch, environment });
        expect(await refused.end()).toBe(1);
        expect(refused.output()).toContain('there are sandboxes whose tokens were made from it; restore it');
        await writeFile(seed, text, { mode: 0o600 });

        await using again = await startServerProcess({ scratch, environment });
        const later = { apiKey: KEY, apiUrl: await again.ready() };
        const listed = await CurrentSandbox.list({ ...later, query: { state: ['running', 'paused'] } }).nextItems();
        expect(listed).toMatchObject([{ sandboxId, state: 'paused' }]);
        const resumed = await CurrentSandbox.connect(sandboxId, { ...later, sandboxUrl: later.apiUrl });
        expect(await resumed.files.read('note.txt')).toBe('kept');
        expect((await resumed.commands.list()).map((process) => process.pid)).toEqual([pid]);
        const headers = { 'e2b-sandbox-id': sandboxId, 'e2b-sandbox-port': '49983' };
        const status = async (token: string) =>
          (await fetch(`${later.apiUrl}/metrics`, { headers: { ...headers, 'x-access-token': token } })).status;
        const { envdAccessToken } = (await (
          await fetch(`${later.apiUrl}/sandboxes/${sandboxId}`, { headers: { 'x-api-key': KEY } })
        ).json()) as { envdAccessToken: string };
        expect(await status(envdAccessToken)).toBe(200);
        expect(await status('wrong')).toBe(401);
        await resumed.kill();
        expect(await readdir(join(server.home, 'snapshots'))).toEqual([]);
      } finally {
        await rm(scratch, { recursive: true, force: true });
      }
    },
  );

  it('lets a request that is under way finish after SIGTERM and refuses new ones', { timeout: 90_000 }, async () => {
    await using server = await startServerProcess({ environment: { AENV_API_KEY: KEY } });
    const url = await server.ready();
    const { port } = new URL(url);
    const socket = connect(Number(port), '127.0.0.1');
    try {
      let received = '';
      socket.setEncoding('utf8').on('data', (text: string) => {
        received += text;
      });
      await once(socket, 'connect');
      const head = ['POST /v2/sandboxes HTTP/1.1', 'host: x', `x-api-key: ${KEY}`, 'content-type: application/json'];
      socket.write([...head, 'content-length: 21', '', '{"templateID":'].join('\r\n'));
      // On the same loop, behind it: when this is answered the other one has arrived.
      expect((await fetch(`${url}/health`)).status).toBe(204);
      const ended = server.end('SIGTERM');
      await expect.poll(() => server.output()).toContain('the server is ending');
      for (const path of ['/health', '/v2/sandboxes']) {
        const refused = await fetch(url + path, { headers: { 'x-api-key': KEY } });
        expect(refused.status).toBe(503);
        expect(refused.headers.get('retry-after')).toBe('5');
        expect(await refused.json()).toEqual({ code: 503, message: 'the server is shutting down' });
      }
      expect((await fetch(`${url}/metrics`)).status).toBe(200);
      socket.write('"base"}');
      await expect.poll(() => received).toContain('HTTP/1.1 201 Created');
      expect(await ended).toBe(0);
      expect(server.output()).not.toContain('"level":"error"');
    } finally {
      socket.destroy();
    }
  });

  it('does not wait longer than it may, nor at all in a hurry', { timeout: 90_000 }, async () => {
    for (const [config, signals] of [
      ['drain_timeout_secs = 0', 1],
      ['drain_timeout_secs = 20', 2],
    ] as const) {
      await using server = await startServerProcess({
        environment: { AENV_API_KEY: KEY },
        config: `backend = "fake"\n${config}`,
      });
      const url = await server.ready();
      const socket = connect(Number(new URL(url).port), '127.0.0.1');
      socket.on('error', () => {});
      await once(socket, 'connect');
      const head = ['POST /v2/sandboxes HTTP/1.1', 'host: x', `x-api-key: ${KEY}`, 'content-type: application/json'];
      socket.write([...head, 'content-length: 21', '', '{'].join('\r\n'));
      expect((await fetch(`${url}/health`)).status).toBe(204);
      const started = performance.now();
      const ended = server.end('SIGTERM');
      await expect.poll(() => server.output()).toContain('the server is ending');
      if (signals === 2) server.process.kill('SIGTERM');
      expect(await ended).toBe(0);
      expect(performance.now() - started).toBeLessThan(15_000);
      socket.destroy();
    }
  });

  it('keeps a second server out of its directories', { timeout: 90_000 }, async () => {
    await using server = await startServerProcess();
    await server.ready();
    await using second = await startServerProcess({ scratch: join(server.home, '..') });
    expect(await second.end()).toBe(1);
    expect(second.output()).toMatch(/^aenv: the server did not start: home_path .* is in use by another server$/m);
    expect(server.process.exitCode).toBeNull();
  });

  it.each<[string, Parameters<typeof startServerProcess>[0], number, RegExp]>([
    [
      'an unknown key',
      { config: 'backends = "fake"' },
      1,
      /unknown configuration key backends \(did you mean backend\?\)/,
    ],
    [
      'a bad value',
      { config: 'pool.low_watermark = -1' },
      1,
      /configuration key pool.low_watermark must be integer ≥ 0/,
    ],
    ['a bad key', { environment: { AENV_API_KEY: 'short' } }, 1, /AENV_API_KEY does not hold an API key/],
    ['no artifacts', { config: 'deps_path = "nothing"' }, 1, /run \.\/aenv setup/],
    [
      'a missing certificate',
      {
        config:
          'backend = "fake"\ntls.addr = "127.0.0.1:0"\ntls.certificates = ["no.pem"]\ntls.private_keys = ["no.key"]',
      },
      1,
      /cannot use .*\/no\.pem \(tls\.certificates\): ENOENT/,
    ],
    ['a missing file', { arguments: ['--config', '/nowhere.toml'] }, 1, /cannot read the configuration: ENOENT/],
    ['an unknown option', { arguments: ['--setup-only'] }, 2, /Unknown option '--setup-only'/],
  ])('refuses to start with %s, in one line', { timeout: 60_000 }, async (_what, options, code, line) => {
    await using server = await startServerProcess(options);
    expect(await server.end()).toBe(code);
    const [message] = server
      .output()
      .split('\n')
      .filter((text) => text.startsWith('aenv: '));
    expect(message).toMatch(line);
    expect(server.output()).not.toContain('    at ');
  });

  it('refuses a port that is taken and leaves nothing', { timeout: 60_000 }, async () => {
    const scratch = await mkdtemp(join(tmpdir(), 'aenv-server-'));
    const other = createServer().listen(0, '127.0.0.1');
    try {
      await once(other, 'listening');
      const address = `127.0.0.1:${(other.address() as AddressInfo).port}`;
      await using server = await startServerProcess({ scratch, environment: { API_ADDR: address } });
      expect(await server.end()).toBe(1);
      expect(server.output()).toMatch(
        new RegExp(`^aenv: the server did not start: cannot listen on api_addr = ${address}:`, 'm'),
      );
      expect((await readdir(scratch)).toSorted()).toEqual(['config.toml', 'home']);
      // Nothing of a former server was looked at.
      expect(await readdir(join(scratch, 'home'))).toEqual(['server.lock']);
    } finally {
      other.close();
      await rm(scratch, { recursive: true, force: true });
    }
  });

  it('explains itself', { timeout: 60_000 }, async () => {
    await using server = await startServerProcess({ arguments: ['--help'] });
    expect(await server.end()).toBe(0);
    expect(server.output()).toContain('--config FILE');
  });
});
