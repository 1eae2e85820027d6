/** `./aenv doctor`: every prerequisite of the server with its state, the reason and the remedy. Changes nothing. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createSetupContext, debianArchitecture } from '../lib/context.ts';
import { repositoryPaths } from '../lib/paths.ts';
import { parsePackages } from '../setup/packages.ts';
import { setupSteps } from '../setup/steps.ts';
import { checkDigests, checkSteps } from './artifacts.ts';
import { type CheckResult, exitCodeOf, formatChecks } from './check.ts';
import { type DoctorHost, HOST_CHECKS } from './host.ts';

const paths = repositoryPaths();
const host: DoctorHost = {
  env: process.env,
  uid: process.getuid?.() ?? 0,
  architecture: debianArchitecture(),
  packages: parsePackages(await readFile(join(paths.root, 'scripts/setup/packages.txt'), 'utf8')),
  dataDirectory: process.env.AENV_HOME_PATH ?? '/var/lib/aenv',
};
const silent = { log: () => {}, progress: () => {} };

const results: CheckResult[] = [];
for (const check of HOST_CHECKS) results.push(await check(host));
results.push(...(await checkSteps(setupSteps(), createSetupContext(paths, silent))));
results.push(await checkDigests(paths.artifacts));
console.log(formatChecks(results));
process.exitCode = exitCodeOf(results);
