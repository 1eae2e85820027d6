import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Sandbox } from 'e2b';
import { showLifecycle } from './demo-lifecycle.ts';
import { type DemoServer, expectThat, PATIENCE, step } from './demo-step.ts';
import { waitUntil } from './wait.ts';

/** Where the service of the demo listens, inside. */
const SERVICE_PORT = 3000;

/** What a first program with the SDK does; the options are all that points it to this server. */
export async function useSandbox(server: DemoServer): Promise<void> {
  const sandbox = await step(
    'create a sandbox from `base`',
    () => Sandbox.create('base', { ...server, timeoutMs: 300_000, metadata: { purpose: 'demo' } }),
    ({ sandboxId }) => sandboxId,
  );
  await runCommands(sandbox);
  await useFiles(sandbox);
  await watchFolder(sandbox);
  await useTerminal(sandbox);
  await reachService(sandbox, server);
  await showLifecycle(sandbox, server);
  const listed = await step(
    'list sandboxes',
    () => Sandbox.list({ ...server, query: { metadata: { purpose: 'demo' } } }).nextItems(),
    (items) => items.map((item) => `${item.sandboxId} ${item.state}`).join(', '),
  );
  expectThat(
    listed.some((item) => item.sandboxId === sandbox.sandboxId),
    'the sandbox is not in the list',
  );
  await step('set its timeout to 60 s', () => sandbox.setTimeout(60_000));
  await step(
    'kill it',
    () => sandbox.kill(),
    (killed) => (killed ? 'gone' : 'was not there'),
  );
  expectThat(!(await sandbox.isRunning()), 'the sandbox still runs after kill');
}

async function runCommands(sandbox: Sandbox): Promise<void> {
  await step(
    'run Python in it',
    () => sandbox.commands.run(`python3 -c 'import platform, os; print(platform.release(), os.cpu_count(), "CPUs")'`),
    ({ stdout }) => stdout.trim(),
  );
  let lines = 0;
  await step(
    'stream a long command',
    () =>
      sandbox.commands.run('for i in $(seq 1 20); do echo line $i; sleep 0.1; done', {
        onStdout: (text) => {
          lines += text.split('\n').length - 1;
        },
      }),
    () => `${lines} lines as they came`,
  );
}

async function useFiles(sandbox: Sandbox): Promise<void> {
  const poem = 'The sandbox keeps what it is told.\n';
  await step(
    'write a file',
    () => sandbox.files.write('poem.txt', poem),
    ({ path }) => path,
  );
  const read = await step(
    'read it back',
    () => sandbox.files.read('poem.txt'),
    (text) => JSON.stringify(text),
  );
  expectThat(read === poem, `the file came back changed: ${JSON.stringify(read)}`);
}

async function watchFolder(sandbox: Sandbox): Promise<void> {
  const seen: string[] = [];
  await step(
    'watch a folder while it changes',
    async () => {
      await sandbox.files.makeDir('watched');
      const watch = await sandbox.files.watchDir(
        'watched',
        ({ type, name }) => {
          if (type === 'create') seen.push(name);
        },
        { recursive: true },
      );
      await sandbox.commands.run('mkdir -p watched/new/deep && touch watched/new/deep/file');
      await waitUntil(() => seen.includes('new/deep/file'), {
        timeout: PATIENCE,
        what: () => `the watch to tell of a file; so far: ${seen.join(', ')}`,
      });
      await watch.stop();
    },
    () => seen.join(', '),
  );
}

async function useTerminal(sandbox: Sandbox): Promise<void> {
  let screen = '';
  const until = (text: string): Promise<unknown> =>
    waitUntil(() => screen.includes(text), { timeout: PATIENCE, what: () => `${text} on the terminal:\n${screen}` });
  await step(
    'drive a terminal',
    async () => {
      const terminal = await sandbox.pty.create({
        ...{ cols: 80, rows: 24 },
        onData(data) {
          screen += Buffer.from(data).toString();
        },
      });
      await sandbox.pty.sendInput(terminal.pid, Buffer.from('echo "size: $(stty size)"\n'));
      await until('size: 24 80');
      await sandbox.pty.resize(terminal.pid, { cols: 132, rows: 43 });
      await sandbox.pty.sendInput(terminal.pid, Buffer.from('echo "size: $(stty size)"; exit\n'));
      await until('size: 43 132');
      await terminal.wait();
    },
    () => (screen.match(/size: \d+ \d+/g) ?? []).join(', then '),
  );
}

/** The headers that lead a request to a port of the sandbox when there is no wildcard DNS for its host name. */
const routeTo = (sandbox: Sandbox, port: number): Record<string, string> => ({
  'e2b-sandbox-id': sandbox.sandboxId,
  'e2b-sandbox-port': String(port),
});

async function reachService(sandbox: Sandbox, { sandboxUrl }: DemoServer): Promise<void> {
  const headers = routeTo(sandbox, SERVICE_PORT);
  await step(
    'serve HTTP inside',
    async () => {
      const source = await readFile(join(import.meta.dirname, 'sandbox-service.mjs'), 'utf8');
      await sandbox.files.write('service.mjs', source);
      await sandbox.commands.run('node service.mjs', { background: true, timeoutMs: 0 });
      await waitUntil(async () => (await fetch(sandboxUrl, { headers })).status === 200, {
        timeout: PATIENCE,
        what: 'the service to listen',
      });
    },
    () => `node on 127.0.0.1:${SERVICE_PORT} of the sandbox`,
  );
  const answer = await step(
    'reach it from outside',
    async () => (await (await fetch(`${sandboxUrl}/hello?from=outside`, { headers })).json()) as { url: string },
    ({ url }) => url,
  );
  expectThat(answer.url === '/hello?from=outside', `the service was asked for ${answer.url}`);
  const echo = await step(
    'talk to it over a WebSocket',
    () => talk(`${sandboxUrl.replace('http', 'ws')}/socket`, headers, 'echo me'),
    (text) => JSON.stringify(text),
  );
  expectThat(echo === 'echo me', `the WebSocket answered ${JSON.stringify(echo)}`);
}

/** Sends a text over a WebSocket and resolves with the first that comes back. */
async function talk(url: string, headers: Record<string, string>, text: string): Promise<string> {
  const socket = new WebSocket(url, { headers });
  const answer = Promise.withResolvers<string>();
  socket.addEventListener('open', () => socket.send(text));
  socket.addEventListener('message', ({ data }) => answer.resolve(String(data)));
  socket.addEventListener('error', () => answer.reject(new Error(`the WebSocket to ${url} failed`)));
  socket.addEventListener('close', ({ code }) => answer.reject(new Error(`the WebSocket was closed with ${code}`)));
  try {
    return await answer.promise;
  } finally {
    socket.close();
  }
}
