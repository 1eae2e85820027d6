import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const ALL = { limit: 1_000, direction: 'forward' } as const;
const EVER = [0, Number.POSITIVE_INFINITY] as const;

const messages = (harness: LifecycleHarness, id: string) =>
  harness.sandboxLogs.read(id, ALL)?.map(({ logger, level, message }) => `${logger} ${level}: ${message}`);
const lastFields = (harness: LifecycleHarness, id: string) => harness.sandboxLogs.read(id, ALL)?.at(-1)?.fields;
const onlyId = (harness: LifecycleHarness) => {
  const [id] = harness.disk.sandboxes.keys();
  return id ?? expect.fail('no sandbox');
};

const CREATED = [
  'sandbox info: sandbox is being created',
  'agent info: guest agent answers',
  'sandbox info: sandbox is ready',
];

describe('the log of a sandbox', () => {
  test('tells its whole life and can be read when it is over', async () => {
    const harness = await startLifecycle({ logRetentionMs: 60_000 });
    const { id, templateId } = await harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 60 });
    expect(messages(harness, id)).toEqual(CREATED);
    expect(harness.sandboxLogs.read(id, ALL)?.[0]?.fields).toEqual({
      templateID: templateId,
      template: 'base',
      timeoutSeconds: '60',
    });

    await harness.orchestrator.setTimeout(id, 120);
    expect(lastFields(harness, id)).toMatchObject({ operation: 'timeout', timeoutSeconds: '120' });
    await harness.orchestrator.kill(id, 'deleted by request');
    expect(messages(harness, id)).toEqual([...CREATED, 'sandbox debug: timeout changed', 'sandbox info: sandbox ends']);
    expect(lastFields(harness, id)).toEqual({ reason: 'deleted', detail: 'deleted by request' });
    await harness.clock.advance(60_000);
    expect(messages(harness, id)).toBeUndefined();
  });

  test('has its last entry before the sandbox is gone for anybody who asks', async () => {
    const harness = await startLifecycle({ logRetentionMs: 60_000 });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const killing = harness.orchestrator.kill(id, 'test');
    expect(() => harness.orchestrator.get(id)).toThrow('not found');
    expect(messages(harness, id)?.at(-1)).toBe('sandbox info: sandbox ends');
    await killing;
  });

  test('tells the end of a timeout', async () => {
    const harness = await startLifecycle({ logRetentionMs: 60_000 });
    const { id } = await harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 5 });
    await harness.clock.advance(6_000);
    expect(lastFields(harness, id)).toEqual({ reason: 'expired', detail: 'its timeout of 5 s passed' });
  });

  test('tells an end nobody asked for by its kind, and nothing else of the engine', async () => {
    const harness = await startLifecycle({ logRetentionMs: 60_000 });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    harness.world.machineOf(id).end('engine-died', 'killed by /usr/bin/secret');
    await harness.until(() => messages(harness, id)?.at(-1)?.includes('sandbox ends') === true);
    expect(messages(harness, id)?.at(-1)).toBe('sandbox error: sandbox ends');
    expect(lastFields(harness, id)).toEqual({ reason: 'engine-died' });
  });

  test('tells why a sandbox could not be created', async () => {
    let id = '';
    const harness = await startLifecycle({
      logRetentionMs: 60_000,
      wrapBackend: (backend) => ({
        ...backend,
        restore: async () => {
          id = onlyId(harness);
          throw new Error('no engine');
        },
      }),
    });
    await expect(harness.orchestrator.create(CREATE_BASE)).rejects.toThrow('could not be started');
    expect(messages(harness, id)).toEqual([
      'sandbox info: sandbox is being created',
      'sandbox error: sandbox could not be created',
      'sandbox error: sandbox ends',
    ]);
    expect(harness.sandboxLogs.read(id, ALL)?.[1]?.fields).toEqual({ stage: 'restore', code: 'create_failed' });
  });

  test('takes what the guest API tells, until the end', async () => {
    let journal: (message: string) => void = () => expect.fail('no guest API');
    const harness = await startLifecycle({
      logRetentionMs: 60_000,
      createEnvd: (options) => {
        journal = (message) => options.journal({ level: 'info', logger: 'process', message, fields: {} });
        return { handle() {}, async [Symbol.asyncDispose]() {} };
      },
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    journal('process started');
    expect(messages(harness, id)?.at(-1)).toBe('process info: process started');
    await harness.orchestrator.kill(id, 'test');
    journal('process ended');
    expect(messages(harness, id)?.at(-1)).toBe('sandbox info: sandbox ends');
  });
});

describe('the metrics of a sandbox', () => {
  test('are sampled from its guest while it runs, and gone with it at once', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    await harness.clock.advance(5_000);
    const [sample] = await harness.sandboxMetrics.range(id, ...EVER);
    expect(sample).toMatchObject({ cpuCount: 1, memTotal: 2 ** 30, diskTotal: 10 * 2 ** 30 });
    const killing = harness.orchestrator.kill(id, 'test');
    expect(await harness.sandboxMetrics.range(id, ...EVER)).toEqual([]);
    await killing;
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });
});

describe('the status', () => {
  test('adds up what running and paused sandboxes are given', async () => {
    const harness = await startLifecycle();
    await harness.orchestrator.create(CREATE_BASE);
    await harness.orchestrator.create(CREATE_BASE);
    expect(harness.orchestrator.status()).toMatchObject({
      allocated: { vcpus: 4, memoryMB: 2048 },
      pausedAllocated: { vcpus: 0, memoryMB: 0 },
      createSuccesses: 2,
    });
  });
});
