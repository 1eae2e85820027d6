import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { renderC } from './render-c.ts';
import { renderTypeScript } from './render-typescript.ts';
import { parseProtocol } from './spec.ts';

const root = join(import.meta.dirname, '../..');
const markdown = readFileSync(join(root, 'guest/PROTOCOL.md'), 'utf8');

describe('parseProtocol', () => {
  it('reads every table of the document', () => {
    const spec = parseProtocol(markdown);
    expect(spec.limits.find((limit) => limit.name === 'MAX_DATA')?.value).toBe(65536);
    expect(spec.frames.map((frame) => frame.name)).toEqual([
      'DATA',
      'EOF',
      'CREDIT',
      'RESET',
      'REQUEST',
      'RESPONSE',
      'EVENT',
    ]);
    expect(spec.operations.find((operation) => operation.name === 'resize')).toEqual({
      op: 12,
      name: 'resize',
      request: [
        { name: 'process', type: 'u32' },
        { name: 'cols', type: 'u16' },
        { name: 'rows', type: 'u16' },
      ],
      response: [],
    });
    expect(spec.structs.map((struct) => struct.name)).toEqual(['file', 'process', 'entry', 'xattr']);
    expect(spec.events.map((event) => event.kind)).toEqual([1, 2, 3]);
    expect(spec.flags.map((flag) => flag.name)).toContain('SPAWN_PTY');
    expect(spec.statuses[0]).toEqual({ name: 'OK', value: 0, meaning: 'done' });
  });

  it('refuses a field of an unknown type', () => {
    expect(() => parseProtocol(markdown.replace('port:u16 slotAddress:str', 'port:u17 slotAddress:str'))).toThrow(
      '"port:u17" has an unknown type',
    );
    expect(() => parseProtocol(markdown.replace('files:list:file', 'files:list:nobody'))).toThrow('files:list:nobody');
  });

  it('refuses a number that is used twice', () => {
    expect(() => parseProtocol(markdown.replace('| 12  | resize', '| 11  | resize'))).toThrow(
      'duplicate operation number',
    );
  });

  it('refuses a document without one of the tables', () => {
    expect(() => parseProtocol(markdown.replace('| code | name ', '| kode | name '))).toThrow('code | name | meaning');
  });

  it('refuses a row with a missing cell', () => {
    expect(() =>
      parseProtocol(markdown.replace('u16 op, u32 deadlineMs, body |', 'u16 op, u32 deadlineMs, body ')),
    ).toThrow('4 cells in a table of 5 columns');
  });
});

describe('rendering', () => {
  it('gives C a format string per body in which lists of structs are spelt out', () => {
    const header = renderC(parseProtocol(markdown));
    expect(header).toContain('#define OP_SPAWN_REQUEST_FORMAT "s[s][s]ssuwwsyq"');
    expect(header).toContain('#define OP_STAT_RESPONSE_FORMAT "[suquuusslsuuq[sy]]"');
  });

  it('gives TypeScript the same fields as a table', () => {
    expect(renderTypeScript(parseProtocol(markdown))).toContain(
      "request: [['process', 'u32'], ['cols', 'u16'], ['rows', 'u16']]",
    );
  });

  it('writes a header that a C compiler accepts on its own', () => {
    const compiled = spawnSync('cc', ['-Wall', '-Wextra', '-Werror', '-x', 'c', '-fsyntax-only', '-'], {
      input: renderC(parseProtocol(markdown)),
      encoding: 'utf8',
    });
    expect(compiled.stderr).toBe('');
    expect(compiled.status).toBe(0);
  });
});

it('the committed outputs are what the document says', () => {
  execFileSync(process.execPath, [join(root, 'scripts/generate-protocol.ts'), '--check'], { stdio: 'pipe' });
});
