import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import type { StoredSnapshot } from '../backend.ts';
import { createExec } from '../exec.ts';
import { createMemoryThread } from '../qemu/memory-thread.ts';
import { snapshotFiles } from '../qemu/snapshot-files.ts';
import { digestArtifact } from '../qemu/snapshot-integrity.ts';
import { shownDisk } from './disk-engine.ts';

const MIB = 1024 * 1024;
const CONVERT_DEADLINE_MS = 120_000;

/** The same capture with its disk in one piece, as a capture writes one of too many layers. */
export async function withRewrittenDisk(snapshot: StoredSnapshot): Promise<StoredSnapshot> {
  const { directory, manifest } = snapshot;
  const { disk, diskLayers } = snapshotFiles(snapshot);
  const path = join(directory, 'rewritten.raw');
  const source = shownDisk(
    disk.path,
    diskLayers.map((layer) => layer.path),
  );
  const exec = createExec({ clock: createRealClock() });
  await exec({ argv: ['qemu-img', 'convert', '-U', '-O', 'raw', source, path], deadlineMs: CONVERT_DEADLINE_MS });
  await using memory = createMemoryThread();
  const virtualSize = manifest.resources.diskSizeMB * MIB;
  const { bytes: size, sha256 } = await digestArtifact(path, virtualSize, { memory, exec });
  return { directory, manifest: { ...manifest, disk: { path, size, virtualSize, sha256 }, diskLayers: [] } };
}
