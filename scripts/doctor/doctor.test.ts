import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { sha256 } from '../lib/files.ts';
import { artifactEntries, checkDigests } from './artifacts.ts';
import { checkCgroups, parseCgroupMounts } from './cgroups.ts';
import { exitCodeOf, formatChecks } from './check.ts';
import { checkNullDevice } from './null-device.ts';
import { checkPrivileges, lackingCapabilities } from './privileges.ts';

describe('the diagnosis', () => {
  it('shows the remedy below the line it belongs to', () => {
    const text = formatChecks([
      { name: 'KVM', state: 'warning', detail: 'slow', remedy: 'buy' },
      { name: 'memory', state: 'ok', detail: '23 GiB' },
    ]);
    expect(text).toBe('warning  KVM     slow\n                 -> buy\nok       memory  23 GiB');
  });

  it('fails only for something missing', () => {
    expect(exitCodeOf([{ name: 'a', state: 'warning', detail: '' }])).toBe(0);
    expect(exitCodeOf([{ name: 'a', state: 'missing', detail: '' }])).toBe(1);
  });
});

describe('/dev/null', () => {
  it('must be a device that everyone may write to', () => {
    expect(checkNullDevice({ mode: 0o020666 })).toEqual({ name: '/dev/null', state: 'ok', detail: 'open to everyone' });
    expect(checkNullDevice({ mode: 0o020644 })).toMatchObject({
      state: 'missing',
      remedy: expect.stringContaining('chmod 666'),
    });
    expect(checkNullDevice({ mode: 0o100666 })).toMatchObject({
      state: 'missing',
      remedy: expect.stringContaining('mknod'),
    });
  });
});

describe('privileges', () => {
  const ALL = 'Name:\tnode\nCapEff:\t000001ffffffffff\n';
  const DOCKER = 'CapEff:\t00000000a80425fb\n';

  it('names the capabilities a container lacks', () => {
    expect(lackingCapabilities(ALL)).toEqual([]);
    expect(lackingCapabilities(DOCKER)).toEqual(['CAP_NET_ADMIN', 'CAP_SYS_PTRACE', 'CAP_SYS_ADMIN']);
    expect(lackingCapabilities('')).toHaveLength(8);
  });

  it('are a matter of sudo for an ordinary user, and missing without it', () => {
    const none = 'CapEff:\t0000000000000000\n';
    expect(checkPrivileges({ uid: 0, status: ALL, sudo: false }).state).toBe('ok');
    expect(checkPrivileges({ uid: 0, status: DOCKER, sudo: true }).state).toBe('missing');
    expect(checkPrivileges({ uid: 1000, status: none, sudo: true }).state).toBe('warning');
    expect(checkPrivileges({ uid: 1000, status: none, sudo: false }).state).toBe('missing');
  });
});

describe('cgroups', () => {
  const HYBRID = `30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
`;

  it('are found in a hybrid layout', () => {
    expect(parseCgroupMounts(HYBRID)).toEqual({ v2: '/sys/fs/cgroup/unified', v1: ['cpu', 'cpuacct'] });
  });

  it('do with a cpu controller in either version, and warn without one', () => {
    expect(checkCgroups({ v1: ['cpu'] }).state).toBe('ok');
    expect(checkCgroups({ v1: [], v2: { path: '/c', controllers: ['cpu', 'memory'] } }).state).toBe('ok');
    expect(checkCgroups({ v1: ['memory'], v2: { path: '/c', controllers: ['hugetlb'] } }).state).toBe('warning');
  });
});

describe('artefacts', () => {
  it('are taken from any depth of the index, images by what they contain', () => {
    const index = {
      format: 1,
      guest: { file: 'g', digest: '1', bytes: 1 },
      rootfs: { base: { file: 'b', digest: '2', contentDigest: '3' } },
    };
    expect(artifactEntries(index)).toEqual([
      { file: 'g', digest: '1' },
      { file: 'b', digest: '3' },
    ]);
  });

  it('are read again, so a changed or missing one is named', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'aenv-doctor-'));
    try {
      expect(await checkDigests(directory)).toMatchObject({ state: 'missing', remedy: './aenv setup' });
      await writeFile(join(directory, 'a'), 'kept');
      await writeFile(join(directory, 'b'), 'changed');
      const index = {
        x: { file: 'a', digest: sha256('kept') },
        y: { file: 'b', digest: sha256('kept') },
        z: { file: 'c', digest: '' },
      };
      await writeFile(join(directory, 'artifacts.json'), JSON.stringify(index));
      expect(await checkDigests(directory)).toMatchObject({ state: 'missing', detail: 'b was changed, c is missing' });
      await writeFile(join(directory, 'artifacts.json'), JSON.stringify({ x: index.x }));
      expect(await checkDigests(directory)).toMatchObject({ state: 'ok' });
    } finally {
      await rm(directory, { recursive: true });
    }
  });
});
