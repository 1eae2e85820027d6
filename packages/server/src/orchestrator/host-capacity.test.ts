import { freemem, tmpdir, totalmem } from 'node:os';
import { expect, test } from 'vitest';
import { createHostCapacityProbe } from './host-capacity.ts';

test('memory and disk of this host are read in MiB', async () => {
  const capacity = await createHostCapacityProbe(tmpdir())();
  expect(capacity.totalMemoryMB).toBeGreaterThan(100);
  expect(capacity.totalMemoryMB).toBeLessThanOrEqual(totalmem() / 1024 ** 2);
  expect(capacity.availableMemoryMB).toBeGreaterThan(0);
  expect(capacity.availableMemoryMB).toBeLessThanOrEqual(capacity.totalMemoryMB);
  expect(capacity.availableMemoryMB).toBeGreaterThan(freemem() / 1024 ** 2 / 10);
  expect(capacity.freeDiskMB).toBeGreaterThan(1);
});

test('a data directory that is not there is an error', async () => {
  await expect(createHostCapacityProbe('/no/such/directory')()).rejects.toMatchObject({ code: 'ENOENT' });
});
