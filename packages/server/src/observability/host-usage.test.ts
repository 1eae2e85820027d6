import { SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { createHostUsageProbe, mountOf, parseCpuInfo, parseCpuTimes, parseMounts, usedPercent } from './host-usage.ts';

describe('host usage', () => {
  it('reads the CPUs together, waiting for disks not being work', () => {
    const before = parseCpuTimes('cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n');
    const after = parseCpuTimes('cpu  150 0 75 850 75 0 0 0 50 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n');
    expect(before).toEqual({ idle: 850, total: 1000 });
    expect(usedPercent(before, after)).toBe(50);
    expect(usedPercent(after, after)).toBe(0);
    // Idle time may go back a little.
    expect(usedPercent({ idle: 20, total: 100 }, { idle: 10, total: 105 })).toBe(100);
    expect(parseCpuTimes('')).toEqual({ idle: 0, total: 0 });
  });

  it('names the CPU', () => {
    const cpuinfo = 'processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763\nprocessor\t: 1\n';
    expect(parseCpuInfo(cpuinfo)).toEqual({ cpuFamily: '25', cpuModel: '1', cpuModelName: 'AMD EPYC 7763' });
    expect(parseCpuInfo('')).toEqual({ cpuFamily: '', cpuModel: '', cpuModelName: '' });
  });

  it('reads mounts with escapes and optional fields, and finds the one a path lies on', () => {
    const mounts = parseMounts(
      [
        '21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw',
        '22 21 8:2 / /data\\040disk rw - xfs /dev/sd\\040b rw',
        '23 21 0:5 / /data rw shared:2 master:1 - tmpfs none rw',
        '24 21 0:6 / /data rw - ext4 /dev/sdc rw',
        'nonsense',
        '',
      ].join('\n'),
    );
    expect(mounts).toHaveLength(4);
    expect(mountOf(mounts, '/data disk/x')).toEqual({
      mountPoint: '/data disk',
      device: '/dev/sd b',
      filesystemType: 'xfs',
    });
    expect(mountOf(mounts, '/data')?.device).toBe('/dev/sdc');
    expect(mountOf(mounts, '/database')?.mountPoint).toBe('/');
    expect(mountOf([], '/x')).toBeUndefined();
  });

  it('is that of this host', async () => {
    const clock = createFakeClock();
    const probe = createHostUsageProbe({ directories: ['/', '/'], clock, log: SILENT_LOG });
    const first = probe.usage();
    // The deadline of the disks, and the first look at the CPUs.
    await expect.poll(() => clock.pendingTimers).toBeGreaterThan(0);
    await expect.poll(() => clock.advance(100).then(() => Promise.race([first, undefined]))).toBeDefined();
    const usage = await first;
    await probe.usage();
    expect(usage.cpuPercent).toBeGreaterThanOrEqual(0);
    expect(usage.cpuPercent).toBeLessThanOrEqual(100);
    expect(usage.cpuCount).toBeGreaterThan(0);
    expect(usage.memoryUsedBytes).toBeGreaterThan(0);
    expect(usage.memoryUsedBytes).toBeLessThan(usage.memoryTotalBytes);
    expect(usage.disks).toMatchObject([{ mountPoint: '/' }]);
    expect(usage.disks[0]?.usedBytes).toBeLessThanOrEqual(usage.disks[0]?.totalBytes ?? 0);
    expect((await probe.machine()).cpuArchitecture).not.toBe('');
  });
});
