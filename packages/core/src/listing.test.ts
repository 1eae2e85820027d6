import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createSandboxId } from './ids.ts';
import { createSandboxIndex, type SandboxQuery } from './listing.ts';
import { decodePageToken, encodePageToken } from './page-token.ts';
import type { SandboxRecord } from './sandbox.ts';
import { SANDBOX_STATES, visibleState } from './state-machine.ts';
import { createSeededRandom, sandboxRecord } from './testing/index.ts';

const ALL: SandboxQuery = {
  states: ['running', 'paused'],
  metadata: new Map(),
  startedAfter: undefined,
  templateId: undefined,
  order: 'desc',
  limit: 100,
  nextToken: undefined,
};

const START = Date.UTC(2026, 0, 1);

/** Few distinct times and values, so that ties and matches are common. */
const records = fc
  .array(
    fc.record({
      at: fc.integer({ min: 0, max: 5 }),
      state: fc.constantFrom(...SANDBOX_STATES),
      app: fc.constantFrom('a', 'b'),
      template: fc.constantFrom('iaaaaaaaaaaaaaaaaaaaa', 'ibbbbbbbbbbbbbbbbbbbb'),
      seed: fc.integer(),
    }),
    { maxLength: 60 },
  )
  .map((items) =>
    items.map(({ at, state, app, template, seed }) =>
      sandboxRecord({
        id: createSandboxId(createSeededRandom(seed)),
        startedAt: START + at,
        state,
        metadata: { app },
        templateId: template as SandboxRecord['templateId'],
      }),
    ),
  );

function pages(index: ReturnType<typeof createSandboxIndex>, query: SandboxQuery, between: () => void = () => {}) {
  const seen: SandboxRecord[] = [];
  let token: string | undefined;
  let count = 0;
  do {
    const page = index.page({ ...query, nextToken: token });
    expect(page.sandboxes.length).toBeLessThanOrEqual(query.limit);
    seen.push(...page.sandboxes);
    token = page.nextToken;
    between();
    count++;
    expect(count).toBeLessThan(200);
  } while (token !== undefined);
  return seen;
}

describe('sandbox index', () => {
  test('pages of any size give every match exactly once, in the order of one sorted list', () => {
    fc.assert(
      fc.property(
        records,
        fc.integer({ min: 1, max: 100 }),
        fc.constantFrom('asc' as const, 'desc' as const),
        fc.subarray(['running', 'paused'] as const, { minLength: 1 }),
        fc.option(fc.constantFrom('a', 'b'), { nil: undefined }),
        fc.option(fc.integer({ min: 0, max: 6 }), { nil: undefined }),
        (all, limit, order, states, app, after) => {
          const index = createSandboxIndex();
          const unique = new Map(all.map((record) => [record.id, record]));
          const gone = all.filter((_, at) => at % 5 === 4).map((record) => record.id);
          for (const record of all) index.put(record);
          for (const id of gone) {
            index.delete(id);
            unique.delete(id);
          }
          const matching = [...unique.values()].filter(
            (record) =>
              (app === undefined || record.metadata.app === app) &&
              (after === undefined || record.startedAt >= START + after),
          );
          const expected = matching
            .filter((record) => states.some((state) => state === visibleState(record.state)))
            .sort((x, y) => y.startedAt - x.startedAt || (x.id < y.id ? -1 : 1));
          if (order === 'asc') expected.reverse();
          const query: SandboxQuery = {
            ...ALL,
            limit,
            order,
            states,
            metadata: new Map(app === undefined ? [] : [['app', app]]),
            startedAfter: after === undefined ? undefined : START + after,
          };
          expect(pages(index, query).map((record) => record.id)).toEqual(expected.map((record) => record.id));
          expect(index.page(query).totalRunning).toBe(
            states.includes('running')
              ? matching.filter((record) => visibleState(record.state) === 'running').length
              : 0,
          );
        },
      ),
    );
  });

  test('items that come and go between pages never make a page repeat or lose one that stayed', () => {
    fc.assert(
      fc.property(records, records, fc.integer({ min: 1, max: 7 }), fc.integer(), (first, later, limit, seed) => {
        const index = createSandboxIndex();
        const rng = createSeededRandom(seed);
        for (const record of first) index.put({ ...record, state: 'running' });
        const start = new Set(index.all().map((record) => record.id));
        const removed = new Set<string>();
        const pending = [...later];
        const seen = pages(index, { ...ALL, limit }, () => {
          const added = pending.pop();
          if (added !== undefined && !start.has(added.id)) index.put({ ...added, state: 'running' });
          const victims = index.all();
          const victim = victims[rng.below(victims.length)];
          if (victim !== undefined) {
            removed.add(victim.id);
            index.delete(victim.id);
          }
        }).map((record) => record.id);
        expect(new Set(seen).size).toBe(seen.length);
        for (const id of start) if (!removed.has(id)) expect(seen).toContain(id);
      }),
    );
  });

  test('put replaces, also when the start time moves, and delete forgets', () => {
    const index = createSandboxIndex();
    const record = sandboxRecord({ startedAt: START });
    index.put(record);
    index.put({ ...record, metadata: { app: 'changed' } });
    index.put({ ...record, startedAt: START + 10 });
    expect(index.size).toBe(1);
    expect(index.all()).toEqual([{ ...record, startedAt: START + 10 }]);
    expect(index.get(record.id)?.startedAt).toBe(START + 10);
    index.delete(record.id);
    index.delete(record.id);
    expect(index.size).toBe(0);
    expect(index.page(ALL)).toEqual({ sandboxes: [], nextToken: undefined, totalRunning: 0 });
  });

  test('filters by template', () => {
    const index = createSandboxIndex();
    const mine = sandboxRecord({
      startedAt: START,
      templateId: 'iaaaaaaaaaaaaaaaaaaaa' as SandboxRecord['templateId'],
    });
    index.put(mine);
    index.put(sandboxRecord({ startedAt: START, id: createSandboxId(createSeededRandom(1)) }));
    expect(index.page({ ...ALL, templateId: 'iaaaaaaaaaaaaaaaaaaaa' }).sandboxes).toEqual([mine]);
    expect(index.page({ ...ALL, templateId: 'icccccccccccccccccccc' }).sandboxes).toEqual([]);
  });

  test('a page of 10 000 sandboxes costs far less than sorting them', () => {
    const index = createSandboxIndex();
    const rng = createSeededRandom(3);
    for (let at = 0; at < 10_000; at++) index.put(sandboxRecord({ id: createSandboxId(rng), startedAt: START + at }));
    const started = performance.now();
    for (let round = 0; round < 50; round++) expect(index.page({ ...ALL, limit: 20 }).sandboxes.length).toBe(20);
    expect((performance.now() - started) / 50).toBeLessThan(20);
  });
});

describe('page token', () => {
  const id = 'i0123456789abcdefghij';

  test.each(['asc', 'desc'] as const)('round-trips in order %s', (order) => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 4_000_000_000_000 }), (startedAt) => {
        expect(decodePageToken(encodePageToken({ startedAt, id }, order), order)).toEqual({ startedAt, id });
      }),
    );
  });

  test('is base64url of the time and the id', () => {
    const token = encodePageToken({ startedAt: START, id }, 'asc');
    expect(Buffer.from(token, 'base64url').toString()).toBe(`2026-01-01T00:00:00.000Z__${id}__asc`);
  });

  const encoded = (text: string) => Buffer.from(text).toString('base64url');
  test.each([
    '',
    '!!!',
    'a',
    encoded(''),
    encoded('2026-01-01T00:00:00.000Z'),
    encoded(`2026-01-01T00:00:00.000Z__`),
    encoded(`2026-01-01T00:00:00.000Z__../../etc`),
    encoded(`2026-02-31T00:00:00.000Z__${id}`),
    encoded(`yesterday__${id}`),
    encoded(`2026-01-01 00:00:00__${id}`),
    encoded(`2026-01-01T00:00:00.000Z__${id}__asc`),
    Buffer.from([0xff, 0xfe, 0xfd]).toString('base64url'),
    'A'.repeat(300),
  ])('%j is an invalid next token', (token) => {
    expect.assertions(2);
    try {
      decodePageToken(token, 'desc');
    } catch (error) {
      expect(error).toMatchObject({ code: 'invalid_argument', message: 'invalid next token' });
    }
    expect(() => createSandboxIndex().page({ ...ALL, nextToken: token })).toThrow('invalid next token');
  });

  test('no text makes it throw anything else', () => {
    fc.assert(
      fc.property(fc.string(), fc.constantFrom('asc' as const, 'desc' as const), (token, order) => {
        expect(() => decodePageToken(token, order)).toThrow('invalid next token');
      }),
    );
  });
});
