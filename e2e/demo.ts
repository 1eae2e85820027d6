import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { startExampleExtension } from './example-extension.ts';
import { useSandbox } from './lib/demo-program.ts';
import { step } from './lib/demo-step.ts';
import { freePort } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

const HELP = `Usage: ./aenv demo [--with-extension]

Starts a server on a free loopback port, runs code in a real virtual machine through the published \`e2b\` package,
prints the time of every step, and ends everything again. The captured template stays in .aenv/demo of this checkout.

  --with-extension   start the example extension as well and print what it is asked and told`;

const REPOSITORY = resolve(import.meta.dirname, '..');
const HOME = join(REPOSITORY, '.aenv/demo');

/** The server as a child of the demo, on its own port, key, home and runtime directory; an abort ends it again. */
async function startServer(extensionUrl: string | undefined, signal: AbortSignal) {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const apiKey = `e2b_${randomBytes(20).toString('hex')}`;
  const config = join(HOME, 'config.toml');
  await mkdir(HOME, { recursive: true });
  await writeFile(
    config,
    [
      `api_addr = "127.0.0.1:${port}"`,
      `home_path = "${HOME}"`,
      `runtime_path = "/run/aenv-demo-${process.pid}"`,
      `deps_path = "${join(REPOSITORY, '.aenv/artifacts')}"`,
      ...(extensionUrl === undefined ? [] : [`custom_extension.url = "${extensionUrl}"`]),
    ].join('\n'),
  );
  const child = spawn(join(REPOSITORY, 'aenv'), ['server', '--config', config], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env.PATH, AENV_API_KEY: apiKey },
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output = (output + text).slice(-64 * 1024);
    });
  }
  const exited = once(child, 'exit');
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await exited;
    return child.exitCode;
  };
  try {
    await waitUntil(
      async () => {
        signal.throwIfAborted();
        const end = child.exitCode ?? child.signalCode;
        if (end !== null) throw new Error(`the server ended with ${end}:\n${output}`);
        return (await fetch(`${url}/health`).catch(() => undefined))?.status === 204;
      },
      { timeout: 180_000, what: () => `the server to answer:\n${output}` },
    );
  } catch (error) {
    await stop();
    throw error;
  }
  return { url, apiKey, stop, output: () => output };
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: { help: { type: 'boolean', short: 'h' }, 'with-extension': { type: 'boolean' } },
  });
  if (values.help) {
    console.log(HELP);
    return;
  }
  const start = performance.now();
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => interrupted.abort(new Error(`interrupted by ${signal}`)));
  }
  const showHook = (line: string): void => console.log(`            ${line}`);
  await using extension = values['with-extension'] ? await startExampleExtension(0, showHook) : undefined;
  const server = await step(
    'start the server; the first one boots `base` once and captures it',
    () => startServer(extension?.url, interrupted.signal),
    ({ url }) => url,
  );
  const aborted = once(interrupted.signal, 'abort').then(() => {
    throw interrupted.signal.reason;
  });
  try {
    await Promise.race([useSandbox({ apiKey: server.apiKey, apiUrl: server.url, sandboxUrl: server.url }), aborted]);
  } catch (error) {
    await server.stop();
    console.error(`the end of the server's log:\n${server.output().slice(-4000)}`);
    throw error;
  }
  const code = await step('stop the server', server.stop, (exit) => `exit code ${exit}`);
  if (code !== 0) throw new Error(`the server ended with ${code}:\n${server.output().slice(-4000)}`);
  await rm(join(HOME, 'config.toml'), { force: true });
  console.log(`demo: ok in ${((performance.now() - start) / 1000).toFixed(1)} s`);
}

main().catch((error: unknown) => {
  console.error(`demo: failed: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
});
