/** `./aenv doctor [--config FILE]`: every prerequisite of the server with its state, the reason and the remedy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createSetupContext, debianArchitecture } from '../lib/context.ts';
import { repositoryPaths } from '../lib/paths.ts';
import { npmStep } from '../setup/npm-step.ts';
import { parsePackages } from '../setup/packages.ts';
import { setupSteps } from '../setup/steps.ts';
import { checkDigests, checkSteps } from './artifacts.ts';
import { type CheckResult, exitCodeOf, formatChecks } from './check.ts';
import { HOST_CHECKS } from './host.ts';

const DEFAULT_DATA_DIRECTORY = '/var/lib/aenv';

const { values } = parseArgs({ options: { config: { type: 'string' } } });
const paths = repositoryPaths();
const context = createSetupContext(paths, { log: () => {}, progress: () => {} });
const results: CheckResult[] = [];

// The server's own code needs npm packages, and the diagnosis must work before they are there.
const packagesThere = (await npmStep().present?.(context)) === true;
const server = packagesThere ? await import('./server.ts') : undefined;
const configPath = values.config ?? process.env.AENV_CONFIG_PATH;
const settings = await server?.readServerConfig(paths.root, process.env, configPath);

const host = {
  env: process.env,
  uid: process.getuid?.() ?? 0,
  architecture: debianArchitecture(),
  packages: parsePackages(await readFile(join(paths.root, 'scripts/setup/packages.txt'), 'utf8')),
  dataDirectory: settings?.config?.home_path ?? DEFAULT_DATA_DIRECTORY,
};
for (const check of HOST_CHECKS) results.push(await check(host));
results.push(...(await checkSteps(setupSteps(), context)));
results.push(await checkDigests(settings?.config?.deps_path ?? paths.artifacts));
if (settings !== undefined) results.push(settings.check);
if (server !== undefined && settings?.config !== undefined)
  results.push(...(await server.checkBackends(settings.config, host.uid)));

console.log(formatChecks(results));
process.exitCode = exitCodeOf(results);
