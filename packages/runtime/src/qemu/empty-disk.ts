import { access, open, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Exec } from '../exec.ts';

const MIB = 1024 * 1024;
/** Raised when the recipe changes, so that older files are not used. */
const RECIPE = 1;
const FORMAT_DEADLINE_MS = 60_000;

async function exists(path: string): Promise<boolean> {
  try {
    await access(path);
    return true;
  } catch {
    return false;
  }
}

/**
 * An empty ext4 file system of `sizeMB` in a sparse file, made once per size: a few megabytes on disk, whatever the size.
 * Guests write to overlays of it. The file is complete when it has its name.
 */
export async function emptyDisk(directory: string, sizeMB: number, exec: Exec, signal?: AbortSignal): Promise<string> {
  const path = join(directory, `ext4-${RECIPE}-${sizeMB}.raw`);
  if (await exists(path)) return path;
  const unfinished = `${path}.${process.pid}.new`;
  await using undo = new AsyncDisposableStack();
  undo.defer(() => rm(unfinished, { force: true }));
  const file = await open(unfinished, 'w', 0o644);
  try {
    await file.chmod(0o644);
    await file.truncate(sizeMB * MIB);
  } finally {
    await file.close();
  }
  // Nothing is reserved for root, and since the holes of a new file are zeros, nothing is left for the guest's kernel to
  // zero in the background: lazily initialised tables would make every sandbox write its whole inode tables.
  const extended = 'lazy_itable_init=1,lazy_journal_init=1,discard';
  const format = ['mke2fs', '-q', '-F', '-t', 'ext4', '-m', '0', '-L', 'aenv-upper', '-E', extended] as const;
  await exec({ argv: [...format, unfinished], deadlineMs: FORMAT_DEADLINE_MS }, signal);
  await rename(unfinished, path);
  return path;
}
