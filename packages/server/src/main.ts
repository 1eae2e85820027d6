import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { holdEventLoop, PlatformError } from '@agentenv/core';
import { systemClock } from './clock.ts';
import { loadConfig } from './config/load.ts';
import type { Config } from './config/schema.ts';
import { longestEndMs } from './longest-end.ts';
import { readBuild } from './observability/build.ts';
import { createLog, type ServerLog } from './observability/log.ts';
import { createRequestContexts, outsideRequests, type RequestContexts } from './observability/request-context.ts';
import { systemRng } from './rng.ts';
import type { RunningServer } from './server.ts';

const USAGE = `Usage: ./aenv server [--config FILE]

Runs the server until SIGTERM or Ctrl-C; a second signal does not wait for requests under way.
Settings are in docs/configuration.md: a TOML file (--config or AENV_CONFIG_PATH) and AENV_* variables.

  --config FILE   the TOML file
  --help          this text`;

/** Directory of this checkout: the packages, and beside them what set-up prepared. */
const INSTALL_DIRECTORY = join(import.meta.dirname, '../../..');
const EXIT_FAILURE = 1;
const EXIT_USAGE = 2;

/** One line for people: what failed and why. */
function explain(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return PlatformError.fromUnknown(error, message).message.replaceAll('\n', ' ');
}

/** The options of the command line; undefined after `--help`. */
function readArguments(args: readonly string[]): { readonly configPath: string | undefined } | undefined {
  const { values } = parseArgs({
    args: [...args],
    options: { config: { type: 'string' }, help: { type: 'boolean', short: 'h' } },
  });
  return values.help ? undefined : { configPath: values.config };
}

async function readConfig(path: string | undefined): Promise<Config> {
  let file: { readonly path: string; readonly text: string } | undefined;
  if (path !== undefined) {
    try {
      file = { path, text: await readFile(path, 'utf8') };
    } catch (error) {
      throw new PlatformError('invalid_argument', `cannot read the configuration: ${(error as Error).message}`, {
        cause: error,
      });
    }
  }
  return loadConfig({
    file,
    environment: process.env,
    workingDirectory: process.cwd(),
    installDirectory: INSTALL_DIRECTORY,
  });
}

function openLog(config: Config, contexts: RequestContexts): ServerLog {
  const { 'log.format': format, 'log.level': level } = config;
  return createLog({
    format: format === 'auto' ? (process.stdout.isTTY ? 'pretty' : 'json') : format,
    level,
    context: () => contexts.current(),
  });
}

/** What to type to use the server from a shell; the key is read from where it is and never printed. */
function shellLines({ url, apiKeySource }: RunningServer): string {
  const key = apiKeySource.startsWith('/') ? `"$(cat ${apiKeySource})"` : `"$${apiKeySource}"`;
  return [
    `AgentENV answers at ${url}; the API key is in ${apiKeySource}. To use it with the E2B clients:`,
    '',
    `  export E2B_API_URL=${url}`,
    `  export E2B_SANDBOX_URL=${url}`,
    `  export E2B_API_KEY=${key}`,
    '',
  ].join('\n');
}

/** Runs a server until a signal; resolves with the exit code. */
async function run(config: Config, { log, flush }: ServerLog, contexts: RequestContexts): Promise<number> {
  // While it starts and ends there may be nothing else: what it took over from a former server is no child of it.
  using _alive = holdEventLoop();
  const stopping = new AbortController();
  const hurry = new AbortController();
  let exitCode = 0;
  const stop = (reason: string): void => {
    if (stopping.signal.aborted) {
      log.warn({ reason }, 'in a hurry: requests under way are not waited for');
      hurry.abort();
      return;
    }
    log.info({ reason }, 'the server is ending');
    stopping.abort(new PlatformError('unavailable', `ended by ${reason}`));
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => stop(signal));
  // A fault of ours must not leave sandboxes without their server: end in order, then fail.
  for (const fault of ['uncaughtException', 'unhandledRejection'] as const) {
    process.on(fault, (error: unknown) => {
      log.error({ err: error }, `${fault}: the server ends`);
      exitCode = EXIT_FAILURE;
      if (!stopping.signal.aborted) stop(fault);
    });
  }

  // Loaded late: a mistake in the arguments or the configuration is answered without waiting for all of it.
  const { startServer } = await import('./server.ts');
  let server: RunningServer;
  try {
    server = await startServer({
      config,
      apiKey: process.env.AENV_API_KEY,
      uid: process.getuid?.() ?? -1,
      clock: outsideRequests(systemClock, contexts),
      rng: systemRng,
      log,
      contexts,
      build: await readBuild(INSTALL_DIRECTORY),
      signal: stopping.signal,
      hurry: hurry.signal,
    });
  } catch (error) {
    if (!stopping.signal.aborted || exitCode !== 0) throw error;
    log.info({}, 'the server has ended before it was ready');
    return exitCode;
  }
  log.info({ url: server.url, apiKeySource: server.apiKeySource }, 'the server is ready');
  if (process.stdout.isTTY) console.log(shellLines(server));

  await aborted(stopping.signal);
  const milliseconds = longestEndMs(config);
  using _watchdog = systemClock.timer(milliseconds, () => {
    log.error({ milliseconds }, 'the end took too long; the next start cleans up what is left');
    flush();
    process.exit(EXIT_FAILURE);
  });
  try {
    await server[Symbol.asyncDispose]();
  } catch (error) {
    log.error({ err: error }, 'the server did not end as it should; the next start cleans up what is left');
    return EXIT_FAILURE;
  }
  log.info({}, 'the server has ended');
  return exitCode;
}

async function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  signal.addEventListener('abort', () => resolve(), { once: true });
  await promise;
}

async function main(args: readonly string[]): Promise<number> {
  let options: ReturnType<typeof readArguments>;
  try {
    options = readArguments(args);
  } catch (error) {
    console.error(`aenv: ${explain(error)}\n\n${USAGE}`);
    return EXIT_USAGE;
  }
  if (options === undefined) {
    console.log(USAGE);
    return 0;
  }
  let serverLog: ServerLog | undefined;
  try {
    const config = await readConfig(options.configPath ?? process.env.AENV_CONFIG_PATH);
    const contexts = createRequestContexts(systemRng);
    serverLog = openLog(config, contexts);
    return await run(config, serverLog, contexts);
  } catch (error) {
    console.error(`aenv: the server did not start: ${explain(error)}`);
    return EXIT_FAILURE;
  } finally {
    serverLog?.flush();
  }
}

process.exit(await main(process.argv.slice(2)));
