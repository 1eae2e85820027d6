import { Sandbox } from '@e2b/code-interpreter';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

/** One microVM for everything: the client of the code interpreter is the ordinary one and a little more. */
let server: TestServer;
let sandbox: Sandbox;
beforeAll(async () => {
  server = await startServer();
  sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000, envs: { GREETING: 'hello' } });
});
afterAll(async () => {
  await sandbox?.kill();
  await server?.[Symbol.asyncDispose]();
});

describe('@e2b/code-interpreter@2.8.0', () => {
  it('creates a sandbox of base, runs commands and keeps files', async () => {
    expect((await sandbox.commands.run('echo $GREETING')).stdout).toBe('hello\n');
    await sandbox.files.write('note.txt', 'kept');
    expect(await sandbox.files.read('note.txt')).toBe('kept');
    expect(await sandbox.isRunning()).toBe(true);
  });

  it('is told that nothing listens on the port of its interpreter, which base does not have', async () => {
    await expect(sandbox.runCode('1 + 1')).rejects.toMatchObject({
      name: 'TimeoutError',
      message: expect.stringMatching(/The sandbox is running but port is not open.*49999/s),
    });
    await expect(sandbox.createCodeContext({ language: 'python' })).rejects.toMatchObject({ name: 'TimeoutError' });
  });

  it('runs code once something answers there', async () => {
    // No interpreter, but what the client expects of one: a stream of JSON lines.
    await sandbox.files.write(
      'interpreter.py',
      `import json, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        code = json.loads(self.rfile.read(int(self.headers['Content-Length'])))['code']
        self.send_response(200)
        self.end_headers()
        for line in (
            {'type': 'number_of_executions', 'execution_count': 1},
            {'type': 'stdout', 'text': 'out', 'timestamp': '2026-01-01T00:00:00Z'},
            {'type': 'result', 'is_main_result': True, 'text': str(eval(code)), 'extra': {}},
            {'type': 'end_of_execution'},
        ):
            self.wfile.write((json.dumps(line) + '\\n').encode())
http.server.HTTPServer(('127.0.0.1', 49999), Handler).serve_forever()
`,
    );
    const interpreter = await sandbox.commands.run('python3 interpreter.py', { background: true, timeoutMs: 0 });
    await sandbox.commands.run('until curl -s -o /dev/null 127.0.0.1:49999; do sleep 0.1; done', { timeoutMs: 60_000 });
    const execution = await sandbox.runCode('6 * 7');
    expect(execution).toMatchObject({ text: '42', logs: { stdout: ['out'], stderr: [] } });
    await interpreter.kill();
  });
});

describe('git', () => {
  const remote = 'git://127.0.0.1/project.git';

  it('clones, commits, branches, pushes and pulls against a daemon in the sandbox', { timeout: 240_000 }, async () => {
    const { git, files } = sandbox;
    await git.init('/home/user/served/project.git', { bare: true, initialBranch: 'main' });
    const daemon = await sandbox.commands.run(
      'exec git daemon --reuseaddr --listen=127.0.0.1 --base-path=/home/user/served --export-all --enable=receive-pack',
      { background: true, timeoutMs: 0 },
    );
    await sandbox.commands.run(`until git ls-remote ${remote}; do sleep 0.2; done`, { timeoutMs: 60_000 });

    await git.configureUser('Jo', 'jo@sandbox.test');
    await git.clone(remote, { path: 'work' });
    await files.write('work/readme.md', '# Project\n');
    expect((await git.status('work')).isClean).toBe(false);
    await git.add('work');
    await git.commit('work', 'Begin');
    await git.push('work', { remote: 'origin', branch: 'main', setUpstream: true });
    await git.createBranch('work', 'feature');
    await files.write('work/feature.txt', 'new\n');
    await git.add('work', { files: ['feature.txt'] });
    await git.commit('work', 'Add a feature', { authorName: 'Al', authorEmail: 'al@sandbox.test' });
    await git.push('work', { remote: 'origin', branch: 'feature' });
    expect(await git.branches('work')).toMatchObject({ branches: ['feature', 'main'], currentBranch: 'feature' });

    await git.clone(remote, { path: 'copy', branch: 'feature', depth: 1 });
    expect(await files.read('copy/feature.txt')).toBe('new\n');
    await files.write('work/feature.txt', 'newer\n');
    await git.add('work');
    await git.commit('work', 'Change it');
    await git.push('work', { remote: 'origin', branch: 'feature' });
    await git.pull('copy', { remote: 'origin', branch: 'feature' });
    expect(await files.read('copy/feature.txt')).toBe('newer\n');
    expect(await git.remoteGet('copy', 'origin')).toBe(remote);

    await git.checkoutBranch('work', 'main');
    expect(await files.exists('work/feature.txt')).toBe(false);
    await expect(git.clone('git://127.0.0.1/no-such.git', { path: 'nothing' })).rejects.toThrow();
    await daemon.kill();
  });
});

describe('watching', () => {
  it('a burst of 500 files in new nested folders reports exactly the tree', async () => {
    await sandbox.files.makeDir('burst');
    const created = new Set<string>();
    const watch = await sandbox.files.watchDir(
      'burst',
      ({ type, name }) => {
        if (type === 'create') created.add(name);
      },
      { recursive: true, timeoutMs: 0 },
    );
    await sandbox.commands.run(
      'cd burst && for a in $(seq 10); do mkdir -p $a/x/y && for b in $(seq 50); do echo $b > $a/x/y/$b; done; done',
      { timeoutMs: 120_000 },
    );
    const tree = (await sandbox.files.list('burst', { depth: 9 })).map(({ path }) =>
      path.slice('/home/user/burst/'.length),
    );
    expect(tree).toHaveLength(530);
    await waitUntil(() => created.size >= tree.length, {
      timeout: 60_000,
      what: () => `${created.size} of 530 events`,
    });
    expect([...created].toSorted()).toEqual(tree.toSorted());
    await watch.stop();
  });
});

describe('port 49983 inside', () => {
  it('is the same guest API, guarded by the same token', async () => {
    const status = async (path: string, options = '') =>
      (await sandbox.commands.run(`curl -s -o /dev/null -w '%{http_code}' ${options} http://localhost:49983${path}`))
        .stdout;
    expect(await status('/health')).toBe('204');
    expect(await status('/envs')).toBe('401');
    expect(await status('/init', '-X POST')).toBe('401');
    const answer = await server.api(`/sandboxes/${sandbox.sandboxId}`);
    const { envdAccessToken } = (await answer.json()) as { envdAccessToken: string };
    const token = `-H 'X-Access-Token: ${envdAccessToken}'`;
    const { stdout } = await sandbox.commands.run(`curl -s ${token} http://127.0.0.1:49983/envs`);
    expect(JSON.parse(stdout)).toMatchObject({ GREETING: 'hello', E2B_SANDBOX_ID: sandbox.sandboxId });
    expect(await status('/init', `-X POST ${token}`)).toBe('404');
  });
});
