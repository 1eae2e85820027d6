import { execFile } from 'node:child_process';
import { mkdtemp, rm, rmdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type SandboxRecord, SILENT_LOG } from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import { expect, test } from 'vitest';
import { openLedger } from './sqlite-ledger.ts';

const run = promisify(execFile);

/** A file system of its own with `megabytes` of room. */
async function smallFileSystem(megabytes: number): Promise<AsyncDisposable & { readonly path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'ledger-disk-'));
  await run('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'ledger-test', path]);
  return {
    path,
    async [Symbol.asyncDispose]() {
      await run('umount', [path]);
      await rmdir(path);
    },
  };
}

const numbered = (number: number): SandboxRecord =>
  sandboxRecord({ id: `i${String(number).padStart(20, '0')}` as SandboxRecord['id'], timeoutSeconds: number });

test('a data disk that is really full is no_space, keeps what was acknowledged and recovers when room comes back', async () => {
  await using disk = await smallFileSystem(2);
  const path = join(disk.path, 'ledger.db');
  await using ledger = await openLedger({ path, log: SILENT_LOG });
  const ballast = join(disk.path, 'ballast');
  const acknowledged: number[] = [];
  for (let number = 0; number < 50; number++) {
    await ledger.putSandbox(numbered(number));
    acknowledged.push(number);
  }
  await writeFile(ballast, Buffer.alloc(4 * 1024 * 1024)).catch((error: unknown) => {
    expect(error).toMatchObject({ code: 'ENOSPC' });
  });
  let refusal: unknown;
  for (let number = 50; refusal === undefined; number++) {
    expect(number).toBeLessThan(20_000);
    await ledger.putSandbox(numbered(number)).then(
      () => acknowledged.push(number),
      (error: unknown) => {
        refusal = error;
      },
    );
  }
  expect(refusal).toMatchObject({ code: 'no_space' });
  expect((await ledger.loadSandboxes()).records.map((record) => record.timeoutSeconds)).toEqual(acknowledged);
  await rm(ballast);
  await ledger.putSandbox(numbered(99_999));
  acknowledged.push(99_999);
  await ledger[Symbol.asyncDispose]();
  await using again = await openLedger({ path, log: SILENT_LOG });
  expect((await again.loadSandboxes()).records.map((record) => record.timeoutSeconds)).toEqual(acknowledged);
});
