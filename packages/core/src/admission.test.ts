import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type AdmissionLimits, createAdmission, DEFAULT_ADMISSION_LIMITS, type HostCapacity } from './admission.ts';
import { PlatformError } from './errors.ts';

const resources = { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 };
const host: HostCapacity = { totalMemoryMB: 24_000, availableMemoryMB: 22_000, freeDiskMB: 80_000 };
const limits = (changes: Partial<AdmissionLimits> = {}): AdmissionLimits => ({
  ...DEFAULT_ADMISSION_LIMITS,
  ...changes,
});

function refusal(action: () => unknown): PlatformError {
  try {
    action();
  } catch (error) {
    if (error instanceof PlatformError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

describe('admission', () => {
  test('20 sandboxes of the default size fit a 24 GiB host and 100 idle ones as well', () => {
    const admission = createAdmission(limits());
    for (let index = 0; index < 100; index++) admission.reserve(resources, host).settle();
    expect(admission.status()).toMatchObject({ sandboxes: 100, starting: 0, allocatedVcpus: 200 });
  });

  test.each<[string, Partial<AdmissionLimits>, Partial<HostCapacity>]>([
    ['orchestrator.max_sandboxes', { maxSandboxes: 0 }, {}],
    ['orchestrator.memory_commit_ratio', { memoryCommitRatio: 22 }, {}],
    ['orchestrator.memory_commit_ratio', {}, { totalMemoryMB: 2_100 }],
    ['free memory', {}, { availableMemoryMB: 2_500 }],
    ['free disk space', {}, { freeDiskMB: 1_500 }],
    ['free disk space', { diskCommitRatio: 8 }, {}],
  ])('a refusal names %s, is 429 and says when to come back', (limit, changed, hostChanged) => {
    const admission = createAdmission(limits(changed));
    const error = refusal(() => admission.reserve(resources, { ...host, ...hostChanged }));
    expect(error.code).toBe('capacity');
    expect(error.mapping.http).toBe(429);
    expect(error.message).toContain(limit);
    expect(error.details.limit).toBe(limit);
    expect(error.retryAfterSeconds).toBe(5);
    expect(admission.status().sandboxes).toBe(0);
  });

  test('the place is taken at decision time and given back once', () => {
    const admission = createAdmission(limits({ maxSandboxes: 2 }));
    const first = admission.reserve(resources, host);
    admission.reserve(resources, host);
    expect(refusal(() => admission.reserve(resources, host)).code).toBe('capacity');
    first.release();
    first.release();
    expect(admission.status().sandboxes).toBe(1);
    admission.reserve(resources, host);
    expect(refusal(() => admission.reserve(resources, host)).code).toBe('capacity');
  });

  test('sandboxes that are starting count against free memory until they have settled', () => {
    const admission = createAdmission(limits());
    const tight = { ...host, availableMemoryMB: 2_400 + 154 * 2 };
    const first = admission.reserve(resources, tight);
    admission.reserve(resources, tight);
    expect(refusal(() => admission.reserve(resources, tight)).details.limit).toBe('free memory');
    first.settle();
    admission.reserve(resources, tight);
  });

  test('no sequence of reserve and release commits more than the host has, and all released leaves zero', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ memoryMB: fc.integer({ min: 128, max: 65_536 }), release: fc.boolean() }), {
          maxLength: 200,
        }),
        (steps) => {
          const admission = createAdmission(limits());
          const held = [];
          for (const { memoryMB, release } of steps) {
            if (release) held.pop()?.release();
            try {
              const reservation = admission.reserve({ ...resources, memoryMB }, host);
              reservation.settle();
              held.push(reservation);
            } catch (error) {
              expect(error).toMatchObject({ code: 'capacity' });
            }
            expect(admission.status().committedMemoryMB).toBeLessThanOrEqual(host.totalMemoryMB - 2_048);
            expect(admission.status().sandboxes).toBe(held.length);
          }
          for (const reservation of held) reservation.release();
          expect(admission.status()).toEqual({
            sandboxes: 0,
            starting: 0,
            allocatedVcpus: 0,
            allocatedMemoryMB: 0,
            committedMemoryMB: 0,
            committedDiskMB: 0,
          });
        },
      ),
    );
  });
});
