import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { ERROR_CATALOGUE, type ErrorMapping } from './errors.ts';

const page = readFileSync(new URL('../../../docs/errors.md', import.meta.url), 'utf8');

test('docs/errors.md lists exactly the catalogue, with every mapping', () => {
  const rows = [...page.matchAll(/^\| `(\w+)` \| (\d+) \| `(\w+)` \| (?:`(\w+)`|–) \| (\d+) \|/gm)].map(
    ([, code, http, connect, errorCode, exit]) => ({
      code,
      http: Number(http),
      connect,
      errorCode,
      exit: Number(exit),
    }),
  );
  const catalogue = Object.entries<ErrorMapping>(ERROR_CATALOGUE).map(([code, mapping]) => ({
    code,
    http: mapping.http,
    connect: mapping.connect,
    errorCode: mapping.errorCode,
    exit: mapping.exit,
  }));
  expect(rows).toEqual(catalogue);
});

test('every HTTP status is an error status a client can meet', () => {
  for (const [code, { http }] of Object.entries<ErrorMapping>(ERROR_CATALOGUE)) {
    expect(http >= 400 && http < 600, code).toBe(true);
  }
});
