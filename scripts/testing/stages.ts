import { readdir } from 'node:fs/promises';
import { join } from 'node:path';

/** One command of `./aenv test`. */
export interface CommandStage {
  readonly name: string;
  /** Arguments of Node.js. */
  readonly args: readonly string[];
  readonly timeoutMs: number;
}

export const TEST_PROJECTS = ['unit', 'integration', 'vm', 'e2e'] as const;
export type TestProject = (typeof TEST_PROJECTS)[number];

const STATIC_DEADLINE_MS = 300_000;
const PROJECT_DEADLINES_MS: Readonly<Record<TestProject, number>> = {
  unit: 600_000,
  integration: 900_000,
  vm: 1_800_000,
  e2e: 1_800_000,
};

/** The checks that run before any test, fastest to explain first. */
export async function staticStages(root: string): Promise<readonly CommandStage[]> {
  const bin = (name: string) => join('node_modules', name);
  const generators = (await readdir(join(root, 'scripts')))
    .filter((name) => /^generate-[a-z-]+\.ts$/.test(name))
    .sort();
  const stages: readonly (readonly [string, readonly string[]])[] = [
    ['format and lint', [bin('@biomejs/biome/bin/biome'), 'check', '--error-on-warnings', '.']],
    ['types', [bin('typescript/bin/tsc'), '--noEmit']],
    [
      'import rules',
      [
        bin('dependency-cruiser/bin/dependency-cruiser.mjs'),
        '--config',
        '.dependency-cruiser.mjs',
        'packages',
        'e2e',
        'bench',
        'scripts',
        'guest',
      ],
    ],
    ['unused code', [bin('knip/bin/knip.js')]],
    ...generators.map((name) => [`generated code: ${name}`, [join('scripts', name), '--check']] as const),
  ];
  return stages.map(([name, args]) => ({ name, args, timeoutMs: STATIC_DEADLINE_MS }));
}

/** One vitest run; its JSON report goes to `reportFile`. */
export function testStage(project: TestProject, filters: readonly string[], reportFile: string): CommandStage {
  const args = ['node_modules/vitest/vitest.mjs', 'run', '--project', project, '--passWithNoTests'];
  return {
    name: `${project} tests`,
    args: [...args, '--reporter=default', '--reporter=json', `--outputFile.json=${reportFile}`, ...filters],
    timeoutMs: PROJECT_DEADLINES_MS[project],
  };
}

/** Splits the arguments of `./aenv test` into the projects to run (all unless named) and what vitest gets. */
export function parseTestArguments(args: readonly string[]): {
  projects: readonly TestProject[];
  filters: readonly string[];
} {
  const named: TestProject[] = [];
  const filters: string[] = [];
  for (let index = 0; index < args.length; index += 1) {
    const arg = args[index] ?? '';
    const value = arg === '--project' ? args[++index] : /^--project=(.*)$/.exec(arg)?.[1];
    if (arg !== '--project' && value === undefined) {
      filters.push(arg);
      continue;
    }
    const project = TEST_PROJECTS.find((name) => name === value);
    if (project === undefined)
      throw new Error(`--project takes one of ${TEST_PROJECTS.join(', ')}, not ${value ?? 'nothing'}`);
    named.push(project);
  }
  return { projects: named.length === 0 ? TEST_PROJECTS : named, filters };
}
