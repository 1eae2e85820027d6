import { describe, expect, test } from 'vitest';
import { drawnAfter, type Testimony } from './witness.ts';

const turn = (count: number, times: readonly [string, string, string], bytes: string) => ({
  ...{ count, times, getrandom: `g${bytes}`, urandom: `u${bytes}` },
});
const before: Testimony = [turn(1, ['10', '11', '12'], 'a'), turn(2, ['13', '14', '15'], 'b')];

describe('what a copy drew after it was made', () => {
  test('is everything behind what it has in common with another one, also when the bytes are the same', () => {
    const one = [...before, turn(3, ['20', '21', '22'], 'c'), turn(4, ['23', '24', '25'], 'd')];
    const other = [...before, turn(3, ['30', '31', '32'], 'c'), turn(4, ['33', '34', '35'], 'e')];
    expect(drawnAfter(one, other)).toEqual(['gc', 'uc', 'gd', 'ud']);
    expect(drawnAfter(other, one)).toEqual(['gc', 'uc', 'ge', 'ue']);
  });

  test('leaves out what may have been drawn before, in the turn in which it was made', () => {
    const one = [...before, turn(3, ['16', '21', '22'], 'c'), turn(4, ['23', '24', '25'], 'd')];
    const other = [...before, turn(3, ['16', '31', '32'], 'c'), turn(4, ['33', '34', '35'], 'd')];
    expect(drawnAfter(one, other)).toEqual(['uc', 'gd', 'ud']);
  });

  test('is nothing when there was no turn since', () => {
    expect(drawnAfter(before, [...before, turn(3, ['20', '21', '22'], 'c')])).toEqual([]);
  });
});
