import fc from 'fast-check';
import { expect, test } from 'vitest';
import { applyDeadlinePolicy, deadlineAfter, NO_DEADLINE_END_AT } from './deadlines.ts';

const time = fc.integer({ min: 0, max: 4_000_000_000_000 });
const seconds = fc.integer({ min: 1, max: 864_000 });

test('set replaces whatever was there', () => {
  fc.assert(
    fc.property(fc.option(time, { nil: undefined }), time, seconds, (current, now, asked) => {
      expect(applyDeadlinePolicy('set', current, now, asked)).toBe(deadlineAfter(now, asked));
    }),
  );
});

test('ensure-minimum never shortens and never ends before what was asked', () => {
  fc.assert(
    fc.property(time, time, seconds, (current, now, asked) => {
      const result = applyDeadlinePolicy('ensure-minimum', current, now, asked);
      expect(result).toBeGreaterThanOrEqual(current);
      expect(result).toBeGreaterThanOrEqual(deadlineAfter(now, asked));
      expect([current, deadlineAfter(now, asked)]).toContain(result);
    }),
  );
});

test('a sandbox without a deadline shows an end about 100 years after the epoch', () => {
  expect(new Date(NO_DEADLINE_END_AT).toISOString().slice(0, 4)).toBe('2070');
});
