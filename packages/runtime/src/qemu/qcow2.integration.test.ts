import { execFile } from 'node:child_process';
import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createOverlay } from './qcow2.ts';

const run = promisify(execFile);
const GIB = 1024 ** 3;

describe('an overlay image', () => {
  let directory: string;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-qcow2-'));
  });
  afterEach(() => rm(directory, { recursive: true, force: true }));

  test.each([512, 10 * GIB, 600 * GIB, 5 * 1024 * GIB])('of %d bytes satisfies qemu-img check', async (size) => {
    const path = join(directory, 'overlay.qcow2');
    await createOverlay(path, size, process.getuid?.() ?? 0);
    const { stdout } = await run('qemu-img', ['info', '--output=json', path]);
    expect(JSON.parse(stdout)).toMatchObject({ format: 'qcow2', 'virtual-size': size });
    await run('qemu-img', ['check', '-q', path]);
  });

  test('accepts writes, names no backing file and is private', async () => {
    const path = join(directory, 'overlay.qcow2');
    await createOverlay(path, GIB, process.getuid?.() ?? 0);
    await writeFile(join(directory, 'data'), Buffer.alloc(70_000, 7));
    await run('qemu-io', ['-f', 'qcow2', '-c', `write -P 7 ${GIB - 131_072} 70k`, path]);
    const { stdout } = await run('qemu-io', ['-f', 'qcow2', '-c', `read -P 7 ${GIB - 131_072} 70k`, path]);
    expect(stdout).not.toContain('verification failed');
    await run('qemu-img', ['check', '-q', path]);
    const info = JSON.parse((await run('qemu-img', ['info', '--output=json', path])).stdout);
    expect(info).not.toHaveProperty('backing-filename');
    expect((await stat(path)).mode & 0o777).toBe(0o600);
  });

  test('is refused for a size that is no multiple of a sector', async () => {
    await expect(createOverlay(join(directory, 'x'), 1000, 0)).rejects.toThrow('multiple of 512');
  });

  test('never replaces an existing file', async () => {
    const path = join(directory, 'overlay.qcow2');
    await createOverlay(path, GIB, process.getuid?.() ?? 0);
    await expect(createOverlay(path, GIB, process.getuid?.() ?? 0)).rejects.toThrow('EEXIST');
  });
});
