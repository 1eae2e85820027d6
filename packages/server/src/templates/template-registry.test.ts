import { createUuidSource, PlatformError } from '@agentenv/core';
import { createFakeClock, createRecordingLog, createSeededRandom } from '@agentenv/core/testing';
import { createFakeBackend, createFakeWorld } from '@agentenv/runtime';
import type { TemplateRecord } from '@agentenv/storage';
import { createMemoryDisk, type MemoryDisk, openMemoryLedger } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import { createMetrics } from '../observability/metrics.ts';
import { createTemplateRegistry, DEFAULT_TEMPLATE_REGISTRY_CONFIG, type TemplateSource } from './template-registry.ts';

const BASE: TemplateSource = {
  name: 'base',
  rootfs: { path: '/fake/base', digest: 'ab'.repeat(32) },
  resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
};

function setUp(options: { disk?: MemoryDisk; source?: TemplateSource; seed?: number } = {}) {
  const clock = createFakeClock();
  const rng = createSeededRandom(options.seed ?? 1);
  const log = createRecordingLog();
  const disk = options.disk ?? createMemoryDisk();
  const world = createFakeWorld({ clock });
  const fake = createFakeBackend({ world });
  const prepared: string[] = [];
  const warmed: string[] = [];
  const registry = createTemplateRegistry({
    backend: {
      prepareTemplate: (rootfs, resources, signal) => {
        prepared.push(rootfs.digest);
        return fake.prepareTemplate(rootfs, resources, signal);
      },
      warm: (snapshot) => warmed.push(snapshot.directory),
    },
    ledger: openMemoryLedger({ disk, log }),
    clock,
    rng,
    ids: createUuidSource({ clock, rng }),
    log,
    stages: createMetrics().stages,
    sources: [options.source ?? BASE],
    namespace: 'default',
    envdVersion: '0.6.13',
    config: DEFAULT_TEMPLATE_REGISTRY_CONFIG,
  });
  const stored = (): TemplateRecord[] => [...disk.templates.values()].map((json) => JSON.parse(json) as TemplateRecord);
  return { clock, log, disk, world, registry, prepared, warmed, stored };
}

describe('template registry', () => {
  test('prepares its source at start, once for everybody, warms it and records it', async () => {
    const { registry, world, prepared, warmed, stored } = setUp();
    const slow = world.faults.next('prepare', { kind: 'hang' });
    await registry.start();
    expect(registry.list()).toEqual([]);
    const waiting = ['base', 'base:default', 'default/base', 'default/base:default', ' BASE '].map((name) =>
      registry.resolve(name),
    );
    await slow.hit;
    slow.release();
    const ready = await Promise.all(waiting);
    expect(new Set(ready.map(({ record }) => record.id)).size).toBe(1);
    expect(ready[0]).toMatchObject({
      alias: 'base',
      snapshot: { manifest: { backend: 'fake' } },
      record: { names: ['base'], vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240, envdVersion: '0.6.13', spawnCount: 0 },
    });
    expect(ready[0]?.record.id).toMatch(/^i[a-z0-9]{20}$/);
    expect(ready[0]?.record.buildId).not.toBe(ready[0]?.record.id);
    expect(prepared).toHaveLength(1);
    expect(warmed).toHaveLength(1);
    expect(registry.list()).toEqual([ready[0]?.record]);
    expect(stored()).toEqual(JSON.parse(JSON.stringify(registry.list())));
    expect(registry.find(ready[0]?.record.id ?? '')).toEqual(ready[0]?.record);
    expect(await registry.resolve(ready[0]?.record.id ?? '')).toMatchObject({ alias: 'base' });
  });

  test.each([
    ['nope', 'not_found', "template 'nope' not found"],
    ['other/base', 'not_found', "template 'other/base' not found"],
    ['nope:v1', 'not_found', "template 'nope:v1' not found"],
    ['base:v1', 'not_found', "tag 'v1' does not exist for template 'base'"],
    ['i0123456789abcdefghij', 'not_found', "template 'i0123456789abcdefghij' not found"],
    ['', 'invalid_argument', 'invalid template reference'],
    ['base:', 'invalid_argument', 'invalid template reference'],
    ['../base', 'invalid_argument', 'invalid template reference'],
  ])('%j is %s', async (reference, code, message) => {
    const { registry } = setUp();
    await registry.start();
    await registry.resolve('base');
    await expect(registry.resolve(reference)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
    if (code === 'not_found') expect(registry.find(reference)).toBeUndefined();
    else expect(() => registry.find(reference)).toThrow(message);
  });

  test('a preparation that takes too long is unavailable for now and ready later', async () => {
    const { registry, clock, world } = setUp();
    const slow = world.faults.next('prepare', { kind: 'hang' });
    await registry.start();
    const outcome = registry.resolve('base').catch((error: unknown) => error);
    await clock.advance(50_000);
    expect(await outcome).toMatchObject({
      code: 'unavailable',
      message: expect.stringContaining("template 'base' is not ready"),
      retryAfterSeconds: 5,
    });
    slow.release();
    expect(await registry.resolve('base')).toMatchObject({ alias: 'base' });
  });

  test('a preparation that fails is logged, answered from memory for a while and tried again then', async () => {
    const { registry, clock, world, prepared, log } = setUp();
    world.faults.next('prepare', { kind: 'fail', error: new PlatformError('no_space', 'disk full') });
    await registry.start();
    await expect(registry.resolve('base')).rejects.toMatchObject({
      code: 'unavailable',
      message: "template 'base' is not ready: disk full",
    });
    await expect(registry.resolve('base')).rejects.toMatchObject({ code: 'unavailable' });
    expect(prepared).toHaveLength(1);
    expect(log.find('error', 'could not be prepared')).toHaveLength(1);
    expect(registry.list()).toEqual([]);
    await clock.advance(5_000);
    await registry.resolve('base');
    expect(prepared).toHaveLength(2);
  });

  test('the same source after a restart is the same build; another source is a new build of the same template', async () => {
    const first = setUp();
    await first.registry.start();
    const { record } = await first.registry.resolve('base');
    const second = setUp({ disk: first.disk, seed: 2 });
    await second.registry.start();
    expect(second.registry.find('base')).toEqual(record);
    expect((await second.registry.resolve('base')).record).toEqual(record);
    const changed = { ...BASE, rootfs: { path: '/fake/new', digest: 'cd'.repeat(32) } };
    const third = setUp({ disk: first.disk, seed: 3, source: changed });
    await third.registry.start();
    const rebuilt = (await third.registry.resolve('base')).record;
    expect(rebuilt.id).toBe(record.id);
    expect(rebuilt.buildId).not.toBe(record.buildId);
    expect(third.stored()).toHaveLength(1);
  });

  test('spawns are counted at once and written together', async () => {
    const { registry, clock, stored } = setUp();
    await registry.start();
    const { record } = await registry.resolve('base');
    for (let index = 0; index < 5; index++) registry.spawned(record.id);
    registry.spawned('i0123456789abcdefghij');
    expect(registry.find('base')).toMatchObject({ spawnCount: 5, lastSpawnedAt: clock.now() });
    expect(stored()[0]?.spawnCount).toBe(0);
    await clock.advance(1_000);
    expect(stored()[0]?.spawnCount).toBe(5);
    expect(clock.pendingTimers).toBe(0);
  });

  test('disposal gives up a preparation, writes what is owed and leaves no timer', async () => {
    const { registry, clock, stored } = setUp();
    await registry.start();
    const { record } = await registry.resolve('base');
    registry.spawned(record.id);
    await registry[Symbol.asyncDispose]();
    expect(stored()[0]?.spawnCount).toBe(1);
    expect(clock.pendingTimers).toBe(0);

    const preparing = setUp();
    preparing.world.faults.next('prepare', { kind: 'hang' });
    await preparing.registry.start();
    const waiting = preparing.registry.resolve('base').catch((error: unknown) => error);
    const disposing = preparing.registry[Symbol.asyncDispose]();
    await preparing.clock.advance(2_000);
    await disposing;
    expect(await waiting).toMatchObject({ code: 'unavailable' });
    expect(preparing.log.find('error')).toEqual([]);
    expect(preparing.clock.pendingTimers).toBe(0);
  });
});
