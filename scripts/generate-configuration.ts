/**
 * Writes docs/configuration.md from the schema of the server's configuration.
 * `--check` writes nothing and exits 1 when the committed document differs from what would be written.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { renderConfigurationDocument } from '../packages/server/src/config/document.ts';

const output = 'docs/configuration.md';
const path = join(dirname(dirname(fileURLToPath(import.meta.url))), output);
const text = renderConfigurationDocument();
const present = await readFile(path, 'utf8').catch((caught: NodeJS.ErrnoException) => {
  if (caught.code === 'ENOENT') return undefined;
  throw caught;
});

if (present !== text) {
  if (process.argv.includes('--check')) {
    console.error(`${output} differs from the schema: run node scripts/generate-configuration.ts`);
    process.exitCode = 1;
  } else {
    await writeFile(path, text);
    console.log(`wrote ${output}`);
  }
}
