import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createSandboxId, createTemplateId, createUuidSource, isPlatformId, isUuid } from './ids.ts';
import { createFakeClock, createSeededRandom } from './testing/index.ts';

describe('ids', () => {
  test('a sandbox id is i and 20 of a-z0-9 whatever the random source gives', () => {
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        const rng = createSeededRandom(seed);
        expect(createSandboxId(rng)).toMatch(/^i[a-z0-9]{20}$/);
        expect(isPlatformId(createTemplateId(rng))).toBe(true);
      }),
    );
  });

  test('bytes that would make some characters likelier are thrown away', () => {
    const biased = new Uint8Array(24).fill(255);
    const zeros = new Uint8Array(24);
    let call = 0;
    const id = createSandboxId({ bytes: () => (call++ === 0 ? biased : zeros) });
    expect(id).toBe(`i${'a'.repeat(20)}`);
    expect(call).toBe(2);
  });

  test('every character is equally likely within 5 sigma over 3 000 ids', () => {
    const rng = createSeededRandom(7);
    const counts = new Map<string, number>();
    for (let index = 0; index < 3_000; index++) {
      for (const character of createSandboxId(rng).slice(1)) {
        counts.set(character, (counts.get(character) ?? 0) + 1);
      }
    }
    const mean = (3_000 * 20) / 36;
    expect(counts.size).toBe(36);
    for (const count of counts.values()) expect(Math.abs(count - mean)).toBeLessThan(5 * Math.sqrt(mean));
  });

  test('instance and build ids are version 7 UUIDs that grow, also when the wall clock steps back', async () => {
    const clock = createFakeClock();
    const source = createUuidSource({ clock, rng: createSeededRandom(1) });
    const ids: string[] = [];
    for (let index = 0; index < 50; index++) {
      ids.push(source.instanceId(), source.buildId());
      if (index % 10 === 0) clock.stepWall(-100);
      else await clock.advance(1);
    }
    for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect([...ids].sort()).toEqual(ids);
    expect(new Set(ids).size).toBe(ids.length);
    expect(ids.every(isUuid)).toBe(true);
  });
});
