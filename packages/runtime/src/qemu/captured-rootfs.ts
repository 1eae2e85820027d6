import { stat } from 'node:fs/promises';
import { PlatformError, type SnapshotManifest } from '@agentenv/core';
import type { HostArtifacts } from '../artifacts.ts';
import type { RootFilesystem } from '../backend.ts';

/**
 * The root file system a capture lies upon: the host's own with that digest, wherever set-up has put it by now, else the file
 * the capture was made with. Throws `conflict` naming it when that is not on this host any more.
 */
export async function capturedRootfs(
  { rootfs: images }: Pick<HostArtifacts, 'rootfs'>,
  { rootfs }: Pick<SnapshotManifest, 'rootfs'>,
): Promise<RootFilesystem> {
  const { path, size, sha256 = '' } = rootfs;
  const own = Object.values(images).find(({ digest }) => digest === sha256);
  if (own !== undefined) return { path: own.path, digest: own.digest };
  const found = await stat(path).then(
    (status) => status.size,
    () => undefined,
  );
  if (found !== size) {
    throw new PlatformError('conflict', `the root file system of the snapshot is not on this host any more: ${path}`, {
      details: { path, expected: size, found },
    });
  }
  return { path, digest: sha256 };
}
