import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { repositoryPaths } from '../lib/paths.ts';

const TRAPS = 50;
/** What may wait for a later change, and the traps that are about it. */
const LATER: Readonly<Record<string, readonly string[]>> = {
  'template builds': ['T6', 'T11', 'T12', 'T13'],
  volumes: ['T16'],
  'resuming by traffic': ['auto-resume refused, or under way'],
};

const { root } = repositoryPaths();
const text = readFileSync(join(root, 'docs/compatibility.md'), 'utf8');

interface Row {
  readonly subject: string;
  readonly cells: readonly string[];
}

/** Rows of the tables whose last column is `tests`. */
function rowsOf(markdown: string): Row[] {
  let open = false;
  return markdown.split('\n').flatMap((line) => {
    if (!line.startsWith('|')) {
      open = false;
      return [];
    }
    const cells = line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim());
    if (cells.at(-1) === 'tests') {
      open = true;
      return [];
    }
    const [subject = ''] = cells;
    return open && !/^-+$/.test(subject) ? [{ subject, cells: (cells.at(-1) ?? '').split('<br>') }] : [];
  });
}

/** A cell as it names a test: `file`, or `file` › the test's name. */
const REFERENCE = /`([^`]+\.test\.ts)`(?: › (.+))?$/;

/** Whether a source has a test of that name, however it is quoted. */
function hasTest(source: string, name: string): boolean {
  return ["'", '"', '`'].some((quote) => {
    const literal = quote + name.replaceAll('\\', '\\\\').replaceAll(quote, `\\${quote}`) + quote;
    for (let at = source.indexOf(literal); at >= 0; at = source.indexOf(literal, at + 1)) {
      // The first argument of a call, which `each` and its like make as well.
      if (/\(\s*$/.test(source.slice(0, at))) return true;
    }
    return false;
  });
}

const rows = rowsOf(text);

describe('docs/compatibility.md', () => {
  test('names a test, or what has to be built before, for every trap', () => {
    const traps = rows.map(({ subject }) => subject).filter((subject) => /^T\d+$/.test(subject));
    expect(traps).toEqual(Array.from({ length: TRAPS }, (_, index) => `T${index + 1}`));
    expect(rows.filter(({ cells }) => cells.every((cell) => cell === ''))).toEqual([]);
  });

  test('names no test that does not exist', () => {
    const missing = rows.flatMap(({ subject, cells }) =>
      cells.flatMap((cell) => {
        const [, path, name] = REFERENCE.exec(cell) ?? [];
        if (path === undefined) return cell.startsWith('later: ') ? [] : [`${subject}: ${cell}`];
        if (!existsSync(join(root, path))) return [`${subject}: no file ${path}`];
        return name === undefined || hasTest(readFileSync(join(root, path), 'utf8'), name)
          ? []
          : [`${subject}: ${cell}`];
      }),
    );
    expect(missing).toEqual([]);
  });

  test('postpones nothing but what cannot be tested yet', () => {
    for (const { subject, cells } of rows) {
      for (const cell of cells.filter((item) => item.startsWith('later: '))) {
        expect(LATER[cell.slice('later: '.length)], `${subject}: ${cell}`).toContain(subject);
      }
    }
  });

  test('tells the clients the tests use', () => {
    const { dependencies } = JSON.parse(readFileSync(join(root, 'e2e/package.json'), 'utf8')) as {
      dependencies: Record<string, string>;
    };
    const clients = Object.entries(dependencies)
      .filter(([name]) => /^(@e2b\/|e2b)/.test(name))
      .map(([name, version]) => (version.startsWith('npm:') ? version.slice('npm:'.length) : `${name}@${version}`));
    for (const client of clients) expect(text).toContain(`| \`${client}\` |`);
  });
});
