/**
 * Writes the code of the guest API's messages and services from packages/protocol/proto with buf and protoc-gen-es, offline.
 * `--check` writes nothing and exits 1 when the committed files differ from what would be written.
 */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const source = 'packages/protocol/proto';
const target = 'packages/protocol/src/generated';
const check = process.argv.includes('--check');
const resolve = createRequire(import.meta.url).resolve;

/** The binary itself: the package's own launcher wants an install script to have run. */
const buf = resolve(`@bufbuild/buf-${process.platform}-${process.arch}/bin/buf`);
const plugin = join(dirname(resolve('@bufbuild/protoc-gen-es/package.json')), 'bin/protoc-gen-es');

async function generateInto(directory: string): Promise<void> {
  const template = {
    version: 'v2',
    plugins: [
      {
        local: [process.execPath, plugin],
        out: directory,
        // JavaScript with declarations: protobuf enums are not erasable syntax.
        opt: ['target=js+dts', 'import_extension=js'],
      },
    ],
  };
  await promisify(execFile)(buf, ['generate', source, '--template', JSON.stringify(template)], {
    cwd: root,
    timeout: 60_000,
  });
}

/** Files the plugin writes; others' generated files lie beside them. */
const OURS = /_pb\.(js|d\.ts)$/;

/** Relative path to text of every file of ours below a directory; empty when there is none. */
async function readTree(directory: string): Promise<Map<string, string>> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true }).catch(
    (caught: NodeJS.ErrnoException) => {
      if (caught.code === 'ENOENT') return [];
      throw caught;
    },
  );
  const tree = new Map<string, string>();
  for (const entry of entries) {
    if (!entry.isFile() || !OURS.test(entry.name)) continue;
    const path = join(entry.parentPath, entry.name);
    tree.set(relative(directory, path), await readFile(path, 'utf8'));
  }
  return tree;
}

const scratch = await mkdtemp(join(tmpdir(), 'aenv-proto-'));
try {
  await generateInto(scratch);
  const wanted = await readTree(scratch);
  const present = await readTree(join(root, target));
  const changed = [...new Set([...wanted.keys(), ...present.keys()])].filter(
    (path) => wanted.get(path) !== present.get(path),
  );
  for (const path of changed) {
    if (check) {
      console.error(`${join(target, path)} differs from ${source}: run node scripts/generate-proto.ts`);
      process.exitCode = 1;
      continue;
    }
    const text = wanted.get(path);
    const absolute = join(root, target, path);
    if (text === undefined) {
      await rm(absolute);
    } else {
      await mkdir(dirname(absolute), { recursive: true });
      await writeFile(absolute, text);
    }
    console.log(`${text === undefined ? 'removed' : 'wrote'} ${join(target, path)}`);
  }
} finally {
  await rm(scratch, { recursive: true, force: true });
}
