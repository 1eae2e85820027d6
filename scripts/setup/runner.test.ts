import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { repositoryPaths } from '../lib/paths.ts';
import { runSteps } from './runner.ts';
import type { SetupContext, SetupStep } from './step.ts';

let root: string;
let context: SetupContext;
let runs: string[];

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'aenv-runner-'));
  const paths = repositoryPaths(root);
  for (const directory of [paths.artifacts, paths.stamps]) await mkdir(directory, { recursive: true });
  runs = [];
  context = {
    paths,
    env: {},
    architecture: 'amd64',
    uid: 0,
    progress: () => {},
    run: async () => '',
    exclusive: (work) => work(),
    scratch: async (name) => {
      const directory = join(paths.scratch, name);
      await mkdir(directory, { recursive: true });
      return directory;
    },
  };
});

afterEach(async () => {
  await rm(root, { recursive: true });
});

const silent = { started: () => {}, finished: () => {} };
const noRoot = async (): Promise<void> => {
  throw new Error('nothing here needs another user');
};

/** A step that writes its input into a file; `input` may change between runs. */
function step(name: string, input: () => string, options: Partial<SetupStep> = {}): SetupStep {
  return {
    name,
    title: name,
    key: async (_context, earlier) => `${input()}/${JSON.stringify(earlier)}`,
    run: async ({ paths }) => {
      runs.push(name);
      await writeFile(join(paths.artifacts, `${name}-${input()}`), input());
      return { files: { [`${name}-${input()}`]: input().length }, facts: { input: input() } };
    },
    ...options,
  };
}

describe('runSteps', () => {
  it('runs every step once and nothing the second time', async () => {
    const steps = [step('a', () => 'x'), step('b', () => 'y')];
    const first = await runSteps(steps, context, silent, noRoot);
    expect(await runSteps(steps, context, silent, noRoot)).toEqual(first);
    expect(runs).toEqual(['a', 'b']);
  });

  it('runs a step again when its input changed, and those that depend on its result', async () => {
    let input = 'x';
    const steps = [step('a', () => input), step('b', () => 'y')];
    await runSteps(steps, context, silent, noRoot);
    input = 'xx';
    await runSteps(steps, context, silent, noRoot);
    expect(runs).toEqual(['a', 'b', 'a', 'b']);
  });

  it.each([
    ['is gone', (path: string) => rm(path)],
    ['is shorter', (path: string) => writeFile(path, '')],
  ])('runs a step again when its file %s', async (_what, damage) => {
    const steps = [step('a', () => 'x')];
    await runSteps(steps, context, silent, noRoot);
    await damage(join(context.paths.artifacts, 'a-x'));
    await runSteps(steps, context, silent, noRoot);
    expect(runs).toEqual(['a', 'a']);
  });

  it.each(['', '{"key":', '[]', '{"key":"x/{}","result":null}'])('takes a stamp of %j for none', async (text) => {
    const steps = [step('a', () => 'x')];
    await runSteps(steps, context, silent, noRoot);
    await writeFile(join(context.paths.stamps, 'a.json'), text);
    await runSteps(steps, context, silent, noRoot);
    expect(runs).toEqual(['a', 'a']);
  });

  it('leaves no stamp and no scratch directory of a step that fails, even where an older stamp was', async () => {
    let broken = false;
    let input = 'x';
    const good = step('a', () => input);
    const failing = step('a', () => input, {
      run: async (inner, earlier) => {
        await writeFile(join(await inner.scratch('a'), 'half'), '');
        if (broken) throw new Error('interrupted');
        return good.run(inner, earlier);
      },
    });
    await runSteps([failing], context, silent, noRoot);
    broken = true;
    input = 'xx';
    await expect(runSteps([failing], context, silent, noRoot)).rejects.toThrow('interrupted');
    await expect(readFile(join(context.paths.stamps, 'a.json'))).rejects.toThrow('ENOENT');
    await expect(readFile(join(context.paths.scratch, 'a/half'))).rejects.toThrow('ENOENT');
  });

  it('asks for root only for a step that needs it and is not done, and believes only its result', async () => {
    const steps = [step('a', () => 'x'), step('b', () => 'y', { rootBecause: 'to try' })];
    const asked: string[] = [];
    const user = { ...context, uid: 1000 };
    const asRoot = async ({ name }: SetupStep): Promise<void> => {
      asked.push(name);
    };
    await expect(runSteps(steps, user, silent, asRoot)).rejects.toThrow('b: not there although the step succeeded');
    await runSteps(steps, context, silent, noRoot);
    await runSteps(steps, user, silent, noRoot);
    expect(asked).toEqual(['b']);
    expect(runs).toEqual(['a', 'b']);
  });

  it('runs a step that stands apart beside those before it, and gives its result to those behind it', async () => {
    const apartRuns = Promise.withResolvers<void>();
    const earlierRan = Promise.withResolvers<void>();
    const waiting = (name: string, before: () => void, other: Promise<void>, options: Partial<SetupStep> = {}) => {
      const plain = step(name, () => 'x');
      return step(name, () => 'x', {
        ...options,
        async run(inner, earlier) {
          before();
          await other;
          return plain.run(inner, earlier);
        },
      });
    };
    const steps = [
      waiting('a', earlierRan.resolve, apartRuns.promise),
      waiting('apart', apartRuns.resolve, earlierRan.promise, { apart: true }),
      step('b', () => 'y'),
    ];
    const first = await runSteps(steps, context, silent, noRoot);
    expect(Object.keys(first)).toEqual(['a', 'apart', 'b']);
    expect(runs.toSorted()).toEqual(['a', 'apart', 'b']);
    expect(await runSteps(steps, context, silent, noRoot)).toEqual(first);
    expect(runs).toHaveLength(3);
  });

  it('lets a step that stands apart end when one before it fails, and keeps what it did', async () => {
    const apart = step('apart', () => 'x', { apart: true });
    const failing = step('a', () => 'x', { run: () => Promise.reject(new Error('interrupted')) });
    await expect(runSteps([failing, apart], context, silent, noRoot)).rejects.toThrow('interrupted');
    expect(runs).toEqual(['apart']);
    await runSteps([step('a', () => 'x'), apart], context, silent, noRoot);
    expect(runs).toEqual(['apart', 'a']);
  });

  it('trusts a step that sees its result itself', async () => {
    let present = false;
    const steps = [
      step('a', () => 'x', {
        present: async () => present,
        run: async () => {
          runs.push('a');
          present = true;
          return { files: {}, facts: {} };
        },
      }),
    ];
    await runSteps(steps, context, silent, noRoot);
    await runSteps(steps, context, silent, noRoot);
    expect(runs).toEqual(['a']);
  });
});
