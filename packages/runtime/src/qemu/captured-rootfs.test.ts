import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { capturedRootfs } from './captured-rootfs.ts';

const base = { path: '/set-up/base-new.ext4', digest: 'new', contentDigest: '', bytes: 1 };
const artifacts = { rootfs: { base } };

describe('the root file system a capture lies upon', () => {
  let directory: string;
  let former: string;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-rootfs-'));
    former = join(directory, 'base-former.ext4');
    await writeFile(former, 'image');
  });
  afterEach(() => rm(directory, { recursive: true }));

  const captured = (sha256: string, path = former) => ({ rootfs: { path, size: 5, sha256 } });

  test("is the host's own with that digest, whatever its path was", async () => {
    const { path, digest } = await capturedRootfs(artifacts, captured('new', '/moved/away/base-new.ext4'));
    expect({ path, digest }).toEqual({ path: base.path, digest: 'new' });
  });

  test('is the file it was made with, where the host has another one by now', async () => {
    expect(await capturedRootfs(artifacts, captured('former'))).toEqual({ path: former, digest: 'former' });
  });

  test.each([
    ['is gone', () => rm(former)],
    ['has another size', () => truncate(former, 4)],
  ])('that %s is a conflict that names it', async (_, change) => {
    await change();
    await expect(capturedRootfs(artifacts, captured('former'))).rejects.toMatchObject({
      code: 'conflict',
      message: `the root file system of the snapshot is not on this host any more: ${former}`,
    });
  });
});
