import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { CommandError, run } from './command.ts';

const timeoutMs = 10_000;

describe('run', () => {
  it('returns standard output and shows both outputs as they come', async () => {
    let seen = '';
    const onOutput = (text: string) => {
      seen += text;
    };
    expect(await run('sh', ['-c', 'echo out; echo err >&2'], { timeoutMs, onOutput })).toBe('out\n');
    expect(seen.split('\n').toSorted()).toEqual(['', 'err', 'out']);
  });

  it('fails with the exit code and the last lines', async () => {
    const failure = run('sh', ['-c', 'echo it broke >&2; exit 3'], { timeoutMs });
    await expect(failure).rejects.toThrow(/exit code 3\nit broke$/);
    await expect(failure).rejects.toMatchObject({ exitCode: 3 });
  });

  it('names a program that is not there', async () => {
    await expect(run('no-such-program', [], { timeoutMs })).rejects.toThrow(CommandError);
    await expect(run('no-such-program', [], { timeoutMs })).rejects.toThrow(/no-such-program.*ENOENT/);
  });

  it('ends a command that takes too long, and says so', async () => {
    await expect(run('sleep', ['60'], { timeoutMs: 100 })).rejects.toThrow('no end after 0.1 s');
  });

  it('says which signal ended a command', async () => {
    await expect(run('sh', ['-c', 'kill -TERM $$'], { timeoutMs })).rejects.toThrow('signal SIGTERM');
  });

  it('writes standard output into a new file from given input', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'aenv-command-'));
    try {
      const stdoutFile = join(directory, 'out');
      const input = Buffer.alloc(300_000, 'x');
      expect(await run('cat', [], { timeoutMs, input, stdoutFile })).toBe('');
      expect(await readFile(stdoutFile)).toEqual(input);
      await expect(run('cat', [], { timeoutMs, input, stdoutFile })).rejects.toThrow('EEXIST');
    } finally {
      await rm(directory, { recursive: true });
    }
  });

  it('does not mind a command that leaves its input unread', async () => {
    expect(await run('true', [], { timeoutMs, input: Buffer.alloc(1_000_000) })).toBe('');
  });
});
