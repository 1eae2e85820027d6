import { describe, expect, test } from 'vitest';
import { CREATE_BASE, startLifecycle } from '../testing/lifecycle-harness.ts';

describe('the catalogue of templates', () => {
  test('has the templates of the host and the snapshots, with all their builds and what was made of them', async () => {
    const { orchestrator, templates, clock } = await startLifecycle();
    const { id } = await orchestrator.create(CREATE_BASE);
    const first = await orchestrator.snapshot(id, 'data');
    await clock.advance(1_000);
    const second = await orchestrator.snapshot(id, 'data:v2');
    await clock.advance(1_000);
    const unnamed = await orchestrator.snapshot(id, undefined);
    for (const template of ['data', 'data', 'data:v2']) await orchestrator.create({ ...CREATE_BASE, template });
    const lastSpawnedAt = clock.now();

    expect(templates.list().map(({ names, builds }) => [names, builds.map(({ buildId }) => buildId)])).toEqual([
      [['base'], [expect.any(String)]],
      [['data'], [second.buildId, first.buildId]],
      [[], [unnamed.buildId]],
    ]);
    const data = templates.find('data');
    // Its own fields are those of the build its default tag means; times and counts are of all of them.
    expect(data).toMatchObject({
      ...{ id: first.templateId, buildId: first.buildId, vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
      ...{ createdAt: first.createdAt, updatedAt: second.createdAt, spawnCount: 3, lastSpawnedAt },
    });
    expect(data?.builds.map(({ spawnCount }) => spawnCount)).toEqual([1, 2]);
    for (const reference of ['default/data', 'data:v2', first.templateId, second.buildId, `${first.buildId}:default`]) {
      expect(templates.find(reference)).toEqual(data);
    }
    for (const reference of ['other/data', 'data:v3', 'base:v2', `${first.buildId}:v2`, 'nothing']) {
      expect(templates.find(reference)).toBeUndefined();
    }
    expect(templates.find('base')).toMatchObject({ spawnCount: 1 });
    expect(() => templates.find('a b')).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
  });

  test('a template whose default tag is gone is found by what is left, but starts nothing without a tag', async () => {
    const { orchestrator, templates } = await startLifecycle();
    const { id } = await orchestrator.create(CREATE_BASE);
    await orchestrator.snapshot(id, 'data');
    const left = await orchestrator.snapshot(id, 'data:v2');
    await orchestrator.deleteTemplate('data:default');
    expect(templates.find('data')).toMatchObject({ buildId: left.buildId });
    await expect(templates.resolve('data')).rejects.toMatchObject({
      code: 'not_found',
      message: "tag 'default' does not exist for template 'data'",
    });
    await expect(templates.resolve(`${left.buildId}:v2`)).rejects.toMatchObject({ code: 'not_found' });
    using leased = await templates.resolve('data:v2');
    expect(leased).toMatchObject({ alias: 'data', record: { buildId: left.buildId } });
    await expect(orchestrator.deleteTemplate('data')).rejects.toMatchObject({ code: 'invalid_argument' });
  });
});
