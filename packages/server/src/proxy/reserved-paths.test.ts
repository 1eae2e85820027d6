import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isReservedPath } from './reserved-paths.ts';

const NAMES = ['init', 'freeze', 'unfreeze', 'collapse', 'fsfreeze', 'fsthaw', 'upgrade'];

describe('a path of the platform', () => {
  it.each([
    '/init',
    '/init/',
    '//init',
    '/init?x=1',
    '/init#x',
    '/INIT',
    '/%69nit',
    '/%2569nit',
    '/%25252525%36%39nit',
    '/init%2F',
    '/init%3Fx',
    '/init%23',
    '/init;a=b',
    '/init%00.html',
    '/%20init',
    '/./init',
    '/a/../init',
    '/a/..%2Finit',
    '/%2e%2e/init',
    '/files/%2e%2e%5cinit',
    '\\init',
    '/../../init/.',
  ])('is recognised in %s', (path) => {
    expect(isReservedPath(path)).toBe(true);
  });

  it.each([
    '/',
    '/health',
    '/files?path=/init',
    '/files/init',
    '/initialise',
    '/process.Process/Start',
    '/init/x',
    '/x%2Finit',
    '/%',
    '/%zz',
  ])('is not %s', (path) => {
    expect(isReservedPath(path)).toBe(false);
  });

  it('is recognised however it is encoded (seed 7)', () => {
    const encodeLayer = (text: string, layer: readonly boolean[]): string =>
      Array.from(text, (character, index) =>
        layer[index % layer.length] === true ? `%${character.charCodeAt(0).toString(16)}` : character,
      ).join('');
    const layer = fc.array(fc.boolean(), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(fc.constantFrom(...NAMES), fc.array(layer, { maxLength: 4 }), (name, layers) => {
        expect(isReservedPath(`/${layers.reduce(encodeLayer, name)}`)).toBe(true);
      }),
      { seed: 7, numRuns: 300 },
    );
  });

  it('is assumed when there is no end to the encoding', () => {
    expect(isReservedPath(`/${'%25'.repeat(1)}${'25'.repeat(30)}69nit`)).toBe(true);
    expect(isReservedPath(`/${'%25'.repeat(10_000)}`)).toBe(false);
  });
});
