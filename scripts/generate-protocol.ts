/**
 * Writes the C header and the TypeScript tables of the agent channel from guest/PROTOCOL.md.
 * `--check` writes nothing and exits 1 when a committed output differs from what would be written.
 */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { renderC } from './protocol/render-c.ts';
import { renderTypeScript } from './protocol/render-typescript.ts';
import { parseProtocol } from './protocol/spec.ts';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const check = process.argv.includes('--check');

const spec = parseProtocol(await readFile(join(root, 'guest/PROTOCOL.md'), 'utf8'));
const outputs: readonly (readonly [path: string, text: string])[] = [
  ['guest/src/protocol.gen.h', renderC(spec)],
  ['packages/agent/src/generated/protocol.ts', renderTypeScript(spec)],
];

for (const [path, text] of outputs) {
  const absolute = join(root, path);
  const present = await readFile(absolute, 'utf8').catch((caught: NodeJS.ErrnoException) => {
    if (caught.code === 'ENOENT') return undefined;
    throw caught;
  });
  if (present === text) continue;
  if (check) {
    console.error(`${path} differs from guest/PROTOCOL.md: run node scripts/generate-protocol.ts`);
    process.exitCode = 1;
    continue;
  }
  await mkdir(dirname(absolute), { recursive: true });
  await writeFile(absolute, text);
  console.log(`wrote ${path}`);
}
