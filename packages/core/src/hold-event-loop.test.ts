import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';

const run = promisify(execFile);
const MODULE = JSON.stringify(new URL('./hold-event-loop.ts', import.meta.url).href);

/** What a program prints that waits on a timer which does not keep it alive. */
async function outputOf(hold: boolean): Promise<string> {
  const script = `
    import { holdEventLoop } from ${MODULE};
    const held = ${hold} ? holdEventLoop() : undefined;
    setTimeout(() => { console.log('done'); held?.[Symbol.dispose](); }, 50).unref();
  `;
  return (await run(process.execPath, ['--input-type=module', '-e', script], { timeout: 20_000 })).stdout;
}

describe('holding the event loop', () => {
  test('keeps a process alive until it is disposed', async () => {
    expect(await outputOf(false)).toBe('');
    expect(await outputOf(true)).toBe('done\n');
  });
});
