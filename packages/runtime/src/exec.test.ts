import { existsSync } from 'node:fs';
import { createFakeClock, createRealClock } from '@agentenv/core/testing';
import { describe, expect, test, vi } from 'vitest';
import { createExec } from './exec.ts';

describe('exec', () => {
  const exec = createExec({ clock: createRealClock() });

  test('answers standard output and feeds standard input', async () => {
    expect(await exec({ argv: ['tr', 'a-z', 'A-Z'], stdin: 'words\n', deadlineMs: 5_000 })).toBe('WORDS\n');
  });

  test('a failure carries the status and the last words', async () => {
    await expect(exec({ argv: ['sh', '-c', 'echo reason >&2; exit 3'], deadlineMs: 5_000 })).rejects.toMatchObject({
      code: 'internal',
      message: 'sh failed with status 3: reason',
    });
  });

  test('a program that does not exist is an error, not a crash', async () => {
    await expect(exec({ argv: ['/no/such/program'], stdin: 'x', deadlineMs: 5_000 })).rejects.toMatchObject({
      code: 'internal',
      message: expect.stringContaining('/no/such/program could not be started (spawn /no/such/program ENOENT)'),
    });
  });

  test('a command that ends without reading its input is judged by its status', async () => {
    expect(await exec({ argv: ['true'], stdin: 'x'.repeat(1_000_000), deadlineMs: 5_000 })).toBe('');
  });

  test("nothing of the server's environment reaches a command", async () => {
    const text = await exec({ argv: ['env'], deadlineMs: 5_000 });
    expect(
      text
        .split('\n')
        .filter(Boolean)
        .map((line) => line.split('=')[0])
        .sort(),
    ).toEqual(['LC_ALL', 'PATH']);
  });

  test('its deadline ends it', async () => {
    const clock = createFakeClock();
    const pending = createExec({ clock })({ argv: ['sleep', '600'], deadlineMs: 1_000 });
    const settled = expect(pending).rejects.toMatchObject({ code: 'deadline_exceeded' });
    await clock.advance(1_000);
    await settled;
    expect(clock.pendingTimers).toBe(0);
  });

  test('what it started ends with it', async () => {
    const script = 'sleep 600 & echo $! >&2; wait';
    const error: unknown = await exec({ argv: ['sh', '-c', script], deadlineMs: 500 }).catch((caught) => caught);
    const pid = Number(/: (\d+)$/.exec(String(error))?.[1]);
    expect(pid).toBeGreaterThan(1);
    // The link of a process that is dead but not yet reaped leads nowhere.
    await vi.waitFor(() => expect(existsSync(`/proc/${pid}/cwd`)).toBe(false));
  });

  test('an abort ends it, and one that came before starts nothing', async () => {
    const controller = new AbortController();
    const pending = exec({ argv: ['sleep', '600'], deadlineMs: 60_000 }, controller.signal);
    controller.abort();
    await expect(pending).rejects.toMatchObject({ code: 'canceled' });
    await expect(exec({ argv: ['true'], deadlineMs: 1_000 }, AbortSignal.abort())).rejects.toThrow();
  });
});
