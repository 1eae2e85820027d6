import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';

test('the committed messages are what the proto files generate', { timeout: 60_000 }, () => {
  const script = join(import.meta.dirname, 'generate-proto.ts');
  expect(execFileSync(process.execPath, [script, '--check'], { encoding: 'utf8' })).toBe('');
});
