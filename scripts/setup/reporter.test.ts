import { describe, expect, it } from 'vitest';
import { createConsoleReporter } from './reporter.ts';
import type { SetupStep } from './step.ts';

const step: SetupStep = { name: 'kernel', title: 'guest kernel', run: async () => ({ files: {}, facts: {} }) };

/** Everything a reporter writes while a step runs for 2.5 s and says one thing. */
function written(columns: number | undefined): string {
  let text = '';
  let now = 1_000;
  const output = { columns, write: (part: string) => (text += part) };
  const reporter = createConsoleReporter(output, () => now);
  reporter.started(step);
  now += 1_500;
  reporter.progress('downloading something with a long name');
  reporter.finished(step, 2_500);
  return text;
}

describe('the progress of set-up', () => {
  it('is plain lines where it is not a terminal', () => {
    expect(written(undefined)).toBe(
      'set-up: guest kernel ...\n  downloading something with a long name\nset-up: guest kernel: done in 2.5 s\n',
    );
  });

  it('replaces itself on one line of a terminal, which it never overflows', () => {
    const lines = written(40).split('\r\u001b[K').slice(1);
    expect(lines).toEqual([
      'set-up: guest kernel ...',
      'set-up: guest kernel (1.5 s): downloadi',
      'set-up: guest kernel: done in 2.5 s\n',
    ]);
  });
});
