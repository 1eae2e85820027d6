import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SILENT_LOG } from '@agentenv/core';
import { HOST_FILES, type Ledger, openCaptureStore, openLedger } from './index.ts';
import {
  createMemoryDisk,
  describeSnapshotRepositoryContract,
  hooked,
  openMemoryCaptures,
  openMemoryLedger,
} from './testing/index.ts';

describeSnapshotRepositoryContract('the repository on a disk', async () => {
  const home = await mkdtemp(join(tmpdir(), 'aenv-snapshots-'));
  let former: Ledger | undefined;
  return {
    async open(hook) {
      await former?.[Symbol.asyncDispose]();
      const ledger = await openLedger({ path: join(home, 'ledger.sqlite'), log: SILENT_LOG });
      former = ledger;
      const files = hooked(HOST_FILES, 'files', hook);
      return {
        ledger: hooked(ledger, 'ledger', hook),
        captures: await openCaptureStore({ root: join(home, 'snapshots'), files }),
      };
    },
    write: (directory, name, text) => writeFile(join(directory, name), text),
    async [Symbol.asyncDispose]() {
      await former?.[Symbol.asyncDispose]();
      await rm(home, { recursive: true, force: true });
    },
  };
});

describeSnapshotRepositoryContract('the repository in memory', async () => {
  const disk = createMemoryDisk();
  const contents = new Map<string, Uint8Array>();
  return {
    open: async (hook) => ({
      ledger: hooked(openMemoryLedger({ disk, log: SILENT_LOG }), 'ledger', hook),
      captures: hooked(
        openMemoryCaptures({
          disk,
          files: {
            get: async (directory, name) => contents.get(join(directory, name)),
            async remove(directory) {
              for (const path of contents.keys()) if (path.startsWith(`${directory}/`)) contents.delete(path);
            },
          },
        }),
        'captures',
        hook,
      ),
    }),
    async write(directory, name, text) {
      contents.set(join(directory, name), Buffer.from(text));
    },
    async [Symbol.asyncDispose]() {},
  };
});
