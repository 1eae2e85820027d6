import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ERROR_CATALOGUE, type ErrorMapping } from './errors.ts';

const DOCUMENT = join(import.meta.dirname, '../../../docs/errors.md');

describe('the error catalogue', () => {
  it('is what docs/errors.md says, row by row', async () => {
    const rows = (await readFile(DOCUMENT, 'utf8'))
      .split('\n')
      .filter((line) => line.startsWith('| `'))
      .map((line) => line.split('|').slice(1, -1));
    const documented = rows.map((cells) => cells.map((cell) => cell.trim().replaceAll('`', '')).slice(0, 5));
    expect(documented).toEqual(
      Object.entries<ErrorMapping>(ERROR_CATALOGUE).map(([code, { http, errorCode, connect, exit }]) => [
        code,
        String(http),
        errorCode ?? '–',
        connect,
        String(exit),
      ]),
    );
    for (const cells of rows) expect(cells.at(-1)?.trim()).not.toBe('');
  });

  it('has statuses an HTTP answer can carry and exit codes a shell can tell from success', () => {
    for (const { http, exit } of Object.values(ERROR_CATALOGUE)) {
      expect(http).toBeGreaterThanOrEqual(400);
      expect(http).toBeLessThan(600);
      expect(exit).toBeGreaterThan(0);
      expect(exit).toBeLessThan(256);
    }
  });
});
