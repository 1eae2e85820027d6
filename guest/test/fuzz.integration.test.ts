import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const run = promisify(execFile);
const SEEDS = [1, 2, 3, 4];
const ITERATIONS = 60_000;
const ROUNDS = 20;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-fuzz-'));
  await run('make', ['-s', '-C', join(import.meta.dirname, '..'), `SANITIZE_OUT=${directory}`, 'fuzz']);
});
afterAll(async () => {
  await rm(directory, { recursive: true, force: true });
});

describe('the frame decoder and the body readers', () => {
  test.each(SEEDS)(`survive ${ITERATIONS} damaged inputs of seed %i without a report`, async (seed) => {
    const { stdout, stderr } = await run(join(directory, 'fuzz'), [String(ITERATIONS), String(seed)], {
      timeout: 60_000,
    });
    expect(stderr).toBe('');
    expect(stdout).toContain('ok');
  });
});

describe('the ring between agent and file worker', () => {
  test.each(SEEDS)(`loses no byte and keeps to its bounds in ${ROUNDS} rounds of seed %i`, async (seed) => {
    const { stdout, stderr } = await run(join(directory, 'ring'), [String(ROUNDS), String(seed)], { timeout: 60_000 });
    expect(stderr).toBe('');
    expect(stdout).toContain('ok');
  });
});
