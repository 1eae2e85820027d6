import { describe, expect, test } from 'vitest';
import { freeMemory } from './memory-pressure.ts';

describe('free memory', () => {
  test('is what the kernel calls available', () => {
    expect(freeMemory('MemTotal:       24683520 kB\nMemFree:  100 kB\nMemAvailable:   12341760 kB\n')).toBe(0.5);
  });

  test('counts as plenty when the kernel does not say', () => {
    expect(freeMemory('MemTotal:       24683520 kB\n')).toBe(1);
    expect(freeMemory('')).toBe(1);
  });
});
