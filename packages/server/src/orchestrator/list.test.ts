import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, startLifecycle } from '../testing/lifecycle-harness.ts';

describe('list', () => {
  test('is newest first, pages without loss, and filters by metadata, time and template', async () => {
    const harness = await startLifecycle();
    const ids: string[] = [];
    for (let index = 0; index < 7; index++) {
      const app = index % 2 === 0 ? 'even' : 'odd';
      ids.unshift((await harness.orchestrator.create({ ...CREATE_BASE, metadata: { app } })).id);
      await harness.clock.advance(10);
    }
    const seen: string[] = [];
    let nextToken: string | undefined;
    do {
      const page = harness.orchestrator.list({ ...LIST_ALL, limit: 2, nextToken });
      expect(page.totalRunning).toBe(7);
      seen.push(...page.sandboxes.map(({ id }) => id));
      nextToken = page.nextToken;
    } while (nextToken !== undefined);
    expect(seen).toEqual(ids);

    const listed = (filter: Partial<typeof LIST_ALL>) =>
      harness.orchestrator.list({ ...LIST_ALL, ...filter }).sandboxes.map(({ id }) => id);
    expect(listed({ order: 'asc' })).toEqual(ids.toReversed());
    expect(listed({ metadata: new Map([['app', 'odd']]) })).toEqual(ids.filter((_, index) => index % 2 === 1));
    expect(listed({ metadata: new Map([['app', 'none']]) })).toEqual([]);
    expect(listed({ states: ['paused'] })).toEqual([]);
    const third = harness.orchestrator.get(ids[2] ?? '').startedAt;
    expect(listed({ startedAfter: third })).toEqual(ids.slice(0, 3));
    for (const template of ['base', 'default/base', harness.templates.find('base')?.id ?? '']) {
      expect(listed({ template })).toEqual(ids);
    }
    expect(listed({ template: 'unknown' })).toEqual([]);
    expect(() => harness.orchestrator.list({ ...LIST_ALL, nextToken: 'x' })).toThrow('invalid next token');
  });

  test('a killed sandbox is gone from the list that is asked for right after the kill began', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const killing = harness.orchestrator.kill(id, 'test');
    expect(harness.orchestrator.list(LIST_ALL)).toEqual({ sandboxes: [], nextToken: undefined, totalRunning: 0 });
    await killing;
  });
});
