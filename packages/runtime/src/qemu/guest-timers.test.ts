import { describe, expect, test } from 'vitest';
import { deservesAnotherBoot, judgeTimers } from './guest-timers.ts';

const BROADCAST = 'Tick Device: mode:     1\nBroadcast device\nClock Event Device: <NULL>\ntick_broadcast_mask: 0\n\n';

function timerList(...devices: readonly string[]): string {
  const processors = devices.map(
    (device, index) =>
      `Tick Device: mode:     1\nPer CPU device: ${index}\nClock Event Device: ${device}\n shift:          32\n`,
  );
  return `Timer List Version: v0.9\n${BROADCAST}${processors.join('\n')}`;
}

const lapic = (mult: number) => `lapic\n max_delta_ns:   37894206833\n min_delta_ns:   1000\n mult:           ${mult}`;

describe('timers of a booted guest', () => {
  const emulated = { kind: 'tcg' } as const;

  test.each([
    ['the rate of the engine', timerList(lapic(268_435_456), lapic(268_435_456)), 'good'],
    ['a rate a little lower', timerList(lapic(243_397_944)), 'good'],
    ['a rate far too low', timerList(lapic(150_000_000)), 'imprecise'],
    ['a rate too high, so that sleeps take too long', timerList(lapic(300_000_000)), 'imprecise'],
    ['one processor with a wrong rate', timerList(lapic(268_435_456), lapic(400_000_000)), 'imprecise'],
    ['no timer', timerList('<NULL>'), 'dead'],
    ['no timer on one processor', timerList(lapic(268_435_456), '<NULL>'), 'dead'],
    ['nothing of processors', BROADCAST, 'dead'],
  ])('with %s are judged', (_what, text, verdict) => {
    expect(judgeTimers(text, emulated)).toBe(verdict);
  });

  test('on a virtualised processor have no rate to be wrong', () => {
    expect(judgeTimers(timerList('lapic-deadline\n mult:           9000000'), { kind: 'kvm' })).toBe('good');
    expect(judgeTimers(timerList('<NULL>'), { kind: 'kvm' })).toBe('dead');
  });
});

describe('a guest whose timers are not right', () => {
  const quick = { tookMs: 5_000, longestMs: 12_000 };
  const slow = { tookMs: 30_000, longestMs: 12_000 };

  test.each([
    ['imprecise', { ...quick, attempt: 1 }, true],
    ['imprecise', { ...quick, attempt: 2 }, false],
    ['imprecise', { ...slow, attempt: 1 }, false],
    ['dead', { ...slow, attempt: 4 }, true],
    ['dead', { ...slow, attempt: 5 }, false],
  ] as const)('%s, %o: booted again %s', (timers, boot, again) => {
    expect(deservesAnotherBoot(timers, boot)).toBe(again);
  });
});
