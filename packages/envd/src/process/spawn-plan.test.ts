import { StartRequestSchema } from '@agentenv/protocol/process';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { planProcess, type SpawnContext, terminalSize } from './spawn-plan.ts';

const context: SpawnContext = {
  user: 'user',
  home: async () => '/home/user',
  defaultWorkdir: '/work',
  globalEnv: { A: 'global', B: 'global' },
  sandboxId: 'iabc',
  templateId: 'base',
  killAfterMs: 60_000,
};

async function plan(request: MessageInitShape<typeof StartRequestSchema>) {
  return (await planProcess(create(StartRequestSchema, request), context)).plan;
}

const refused = expect.objectContaining({ code: 'invalid_argument' });

describe('plan of a process', () => {
  test('carries what the request asks for', async () => {
    const request = { process: { cmd: '/bin/bash', args: ['-l', '-c', 'ls'], cwd: '/tmp' }, stdin: false, tag: 't' };
    expect(await plan(request)).toEqual({
      user: 'user',
      argv: ['/bin/bash', '-l', '-c', 'ls'],
      env: { A: 'global', B: 'global', E2B_SANDBOX: 'true', E2B_SANDBOX_ID: 'iabc', E2B_TEMPLATE_ID: 'base' },
      cwd: '/tmp',
      defaultCwd: '/work',
      stdin: false,
      killAfterMs: 60_000,
    });
  });

  test('the request wins over the global environment, and neither over the identity of the sandbox', async () => {
    const envs = { A: 'request', C: '$x "quoted"\n', E2B_SANDBOX_ID: 'forged', E2B_TEMPLATE_ID: 'forged' };
    expect((await plan({ process: { cmd: 'x', envs } })).env).toEqual({
      A: 'request',
      B: 'global',
      C: '$x "quoted"\n',
      E2B_SANDBOX: 'true',
      E2B_SANDBOX_ID: 'iabc',
      E2B_TEMPLATE_ID: 'base',
    });
  });

  test('stdin is open unless it is refused', async () => {
    expect((await plan({ process: { cmd: 'x' } })).stdin).toBe(true);
    expect((await plan({ process: { cmd: 'x' }, stdin: true })).stdin).toBe(true);
  });

  test('a home in the working directory is the one of the user', async () => {
    expect((await plan({ process: { cmd: 'x', cwd: '~/a' } })).cwd).toBe('/home/user/a');
    expect((await plan({ process: { cmd: 'x', cwd: '~' } })).cwd).toBe('/home/user');
    expect((await plan({ process: { cmd: 'x', cwd: 'a' } })).cwd).toBe('a');
    await expect(plan({ process: { cmd: 'x', cwd: '~other' } })).rejects.toThrow(refused);
  });

  test.each([
    ['no process', {}],
    ['no command', { process: { args: ['x'] } }],
    ['a NUL byte in an argument', { process: { cmd: 'x', args: ['a\0b'] } }],
    ['a NUL byte in a variable', { process: { cmd: 'x', envs: { A: '\0' } } }],
    ['a variable without a name', { process: { cmd: 'x', envs: { '': 'x' } } }],
    ['a name with an equals sign', { process: { cmd: 'x', envs: { 'A=B': 'x' } } }],
    ['one argument beyond the kernel', { process: { cmd: 'x', args: ['y'.repeat(131_072)] } }],
    ['too much in total', { process: { cmd: 'x', args: Array.from({ length: 5 }, () => 'y'.repeat(131_000)) } }],
    ['too many arguments', { process: { cmd: 'x', args: Array.from({ length: 20_000 }, () => '') } }],
    ['a long tag', { process: { cmd: 'x' }, tag: 'x'.repeat(1025) }],
    ['a huge terminal', { process: { cmd: 'x' }, pty: { size: { cols: 65_536, rows: 1 } } }],
  ] as const)('refuses %s', async (_what, request) => {
    await expect(plan(request as MessageInitShape<typeof StartRequestSchema>)).rejects.toThrow(refused);
  });

  test('the longest argument the kernel takes passes', async () => {
    expect((await plan({ process: { cmd: 'x', args: ['y'.repeat(131_071)] } })).argv[1]).toHaveLength(131_071);
  });

  test('a terminal without a size starts with what the kernel has', () => {
    expect(terminalSize(create(StartRequestSchema, { pty: {} }).pty ?? expect.fail())).toEqual({ cols: 0, rows: 0 });
  });
});
