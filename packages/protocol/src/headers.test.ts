import { describe, expect, it } from 'vitest';
import { ENVD_VERSION } from './headers.ts';

/** What the published clients use from which version on (contract e2b.md section 11); all of it is built. */
const GATES = ['0.1.0', '0.1.4', '0.2.4', '0.3.0', '0.4.0', '0.5.2', '0.5.7', '0.6.2', '0.6.3', '0.6.4'];

const numbers = (version: string): number[] => version.split('.').map(Number);

function isAtLeast(version: string, gate: string): boolean {
  const [left, right] = [numbers(version), numbers(gate)];
  const differs = left.findIndex((number, index) => number !== right[index]);
  return differs < 0 || (left[differs] ?? 0) > (right[differs] ?? 0);
}

describe('the envd version clients are told', () => {
  it('is plain and numeric, as they compare it', () => {
    expect(ENVD_VERSION).toMatch(/^\d+\.\d+\.\d+$/);
  });

  it.each(GATES)('is not below %s', (gate) => {
    expect(isAtLeast(ENVD_VERSION, gate)).toBe(true);
  });
});
