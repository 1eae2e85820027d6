import { chmod, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openCaptureStore } from './capture-store.ts';
import { createMemoryDisk, describeCaptureStoreContract, openMemoryCaptures } from './testing/index.ts';

async function temporary(): Promise<{ readonly path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), 'aenv-captures-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

describeCaptureStoreContract('the directory of captures', async () => {
  const directory = await temporary();
  return {
    open: () => openCaptureStore({ root: join(directory.path, 'snapshots') }),
    write: (path, name, text) => writeFile(join(path, name), text),
    [Symbol.asyncDispose]: () => directory[Symbol.asyncDispose](),
  };
});

describeCaptureStoreContract('the memory of captures', async () => {
  const disk = createMemoryDisk();
  const files = new Map<string, Uint8Array>();
  return {
    open: async () =>
      openMemoryCaptures({
        disk,
        files: {
          get: async (directory, name) => files.get(join(directory, name)),
          async remove(directory) {
            for (const path of files.keys()) if (path.startsWith(`${directory}/`)) files.delete(path);
          },
        },
      }),
    async write(directory, name, text) {
      files.set(join(directory, name), Buffer.from(text));
    },
    async [Symbol.asyncDispose]() {},
  };
});

test('captures hold secrets: only the user of the server may look at them', async () => {
  await using directory = await temporary();
  await chmod(directory.path, 0o755);
  const root = join(directory.path, 'snapshots');
  const store = await openCaptureStore({ root });
  const made = await store.allocate('019b76da-a800-7000-8000-000000000001' as never);
  for (const path of [root, made]) expect((await stat(path)).mode & 0o777).toBe(0o700);
});
