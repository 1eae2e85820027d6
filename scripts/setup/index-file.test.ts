import { mkdir, mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadArtifacts } from '@agentenv/runtime';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { artifactIndex } from './index-file.ts';
import type { StepResults } from './step.ts';

const results: StepResults = {
  guest: {
    files: { 'guest-1': 5, 'launch-1': 6 },
    facts: { guestFile: 'guest-1', guestDigest: 'g', launcherFile: 'launch-1', launcherDigest: 'l' },
  },
  kernel: {
    files: { 'vmlinux-1': 7, 'modules-1': 3 },
    facts: { kernelFile: 'vmlinux-1', kernelDigest: 'k', version: '6.1.0-x', package: 'p' },
  },
  initramfs: { files: { 'initramfs-1': 8 }, facts: { initramfsFile: 'initramfs-1', initramfsDigest: 'i' } },
  rootfs: { files: { 'base-1': 9 }, facts: { rootfsFile: 'base-1', rootfsDigest: 'r', rootfsContentDigest: 'c' } },
};
let directory: string;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-index-'));
  for (const result of Object.values(results)) {
    for (const [file, bytes] of Object.entries(result.files))
      await writeFile(join(directory, file), Buffer.alloc(bytes));
  }
});

afterEach(async () => {
  await rm(directory, { recursive: true });
});

const writeIndex = (index: unknown) => writeFile(join(directory, 'artifacts.json'), JSON.stringify(index));

describe('the index of artefacts', () => {
  it('is what the runtime loads', async () => {
    await writeIndex(artifactIndex(results));
    expect(await loadArtifacts(directory)).toEqual({
      kernel: { path: join(directory, 'vmlinux-1'), digest: 'k', bytes: 7, version: '6.1.0-x' },
      initramfs: { path: join(directory, 'initramfs-1'), digest: 'i', bytes: 8 },
      guest: { path: join(directory, 'guest-1'), digest: 'g', bytes: 5 },
      launcher: { path: join(directory, 'launch-1'), digest: 'l', bytes: 6 },
      rootfs: { base: { path: join(directory, 'base-1'), digest: 'r', contentDigest: 'c', bytes: 9 } },
    });
  });

  it('is not made while a step has no result', () => {
    expect(() => artifactIndex({ ...results, kernel: { files: {}, facts: {} } })).toThrow(
      'set-up step kernel left no kernel',
    );
  });

  it.each([
    ['no index', async () => {}, /no artifacts\.json in .*run \.\/aenv setup/],
    ['half an index', () => writeFile(join(directory, 'artifacts.json'), '{"format":'), /not JSON.*run \.\/aenv setup/],
    ['another format', () => writeIndex({ format: 2 }), /format 2, this version reads 1/],
    ['no base image', () => writeIndex({ ...Object(artifactIndex(results)), rootfs: {} }), /rootfs\.base is missing/],
    [
      'no digest',
      () => writeIndex({ ...Object(artifactIndex(results)), guest: { file: 'guest-1', bytes: 5 } }),
      /guest\.digest is missing/,
    ],
  ])('is refused with the remedy: %s', async (_what, arrange, message) => {
    await arrange();
    await expect(loadArtifacts(directory)).rejects.toThrow(message);
  });

  it.each([
    ['missing', () => rm(join(directory, 'base-1')), /base-1 \(rootfs\.base\) is missing/],
    ['cut short', () => truncate(join(directory, 'vmlinux-1'), 3), /vmlinux-1 \(kernel\) has 3 bytes instead of 7/],
    [
      'a directory',
      () => rm(join(directory, 'guest-1')).then(() => mkdir(join(directory, 'guest-1'))),
      /guest-1 \(guest\)/,
    ],
  ])('is refused when a file is %s', async (_what, damage, message) => {
    await writeIndex(artifactIndex(results));
    await damage();
    await expect(loadArtifacts(directory)).rejects.toThrow(message);
  });
});
