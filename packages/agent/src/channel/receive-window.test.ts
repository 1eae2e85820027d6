import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import { createReceiveWindow } from './receive-window.ts';

const SIZE = 1000;

function windowWithLog(limit?: number): {
  readonly window: ReturnType<typeof createReceiveWindow>;
  readonly grants: number[];
} {
  const grants: number[] = [];
  const window = createReceiveWindow({
    size: SIZE,
    limit,
    grant(bytes) {
      grants.push(bytes);
      return true;
    },
  });
  return { window, grants };
}

describe('receive window', () => {
  it('grants nothing before it is open, then all of it', () => {
    const { window, grants } = windowWithLog();
    expect(() => window.receive(1)).toThrow(ProtocolViolation);
    window.open();
    expect(grants).toEqual([SIZE]);
  });

  it('grants again when a quarter of it was consumed, not when it was received', () => {
    const { window, grants } = windowWithLog();
    window.open();
    window.receive(900);
    window.settle(249);
    expect(grants).toEqual([SIZE]);
    window.settle(1);
    expect(grants).toEqual([SIZE, 250]);
  });

  it('refuses bytes beyond what was granted', () => {
    const { window } = windowWithLog();
    window.open();
    window.receive(SIZE);
    expect(() => window.receive(1)).toThrow('1 bytes received against a credit of 0');
  });

  it('after a restart grants everything its consumer does not hold', () => {
    const { window, grants } = windowWithLog();
    window.open();
    window.receive(400);
    window.restart();
    expect(grants).toEqual([SIZE, 600]);
    window.settle(400);
    expect(grants).toEqual([SIZE, 600, 400]);
  });

  it('keeps credit that cannot be sent until it can', () => {
    let open = false;
    const grants: number[] = [];
    const window = createReceiveWindow({ size: SIZE, grant: (bytes) => open && grants.push(bytes) > 0 });
    window.open();
    open = true;
    window.flush();
    expect(grants).toEqual([SIZE]);
  });

  it('doubles up to its limit as long as its consumer keeps up', () => {
    const { window, grants } = windowWithLog(3 * SIZE);
    window.open();
    for (let index = 0; index < 40; index++) {
      window.receive(SIZE);
      window.settle(SIZE);
    }
    const granted = grants.reduce((sum, bytes) => sum + bytes, 0);
    expect(granted).toBe(3 * SIZE + 40 * SIZE);
    expect(() => window.receive(3 * SIZE + 1)).toThrow(ProtocolViolation);
    window.receive(3 * SIZE);
  });

  it('does not grow for a consumer that holds something back, nor without a limit', () => {
    for (const limit of [4 * SIZE, undefined]) {
      const { window, grants } = windowWithLog(limit);
      window.open();
      if (limit !== undefined) window.receive(1);
      for (let index = 0; index < 40; index++) {
        window.receive(SIZE / 2);
        window.settle(SIZE / 2);
      }
      expect(grants).toEqual([SIZE, ...Array.from({ length: 40 }, () => SIZE / 2)]);
    }
  });

  it('never lets more than its size be granted or held, and never loses a byte', () => {
    const step = fc.oneof(
      fc.record({ what: fc.constant('receive' as const), bytes: fc.nat(SIZE) }),
      fc.record({ what: fc.constant('settle' as const), bytes: fc.nat(SIZE) }),
      fc.record({ what: fc.constant('restart' as const), bytes: fc.constant(0) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        let granted = 0;
        let held = 0;
        const window = createReceiveWindow({
          size: SIZE,
          grant(bytes) {
            granted += bytes;
            return true;
          },
        });
        window.open();
        for (const { what, bytes } of steps) {
          if (what === 'receive') {
            const count = Math.min(bytes, granted);
            granted -= count;
            held += count;
            window.receive(count);
          } else if (what === 'settle') {
            const count = Math.min(bytes, held);
            held -= count;
            window.settle(count);
          } else {
            granted = 0;
            window.restart();
          }
          expect(granted + held).toBeLessThanOrEqual(SIZE);
          expect(granted + held).toBeGreaterThan(SIZE - SIZE / 4);
        }
      }),
    );
  });
});
