import { PlatformError } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type HarnessOptions, LIST_ALL, startLifecycle } from '../testing/lifecycle-harness.ts';

const hang = () => new Promise<never>(() => {});
const fail = () => Promise.reject(new PlatformError('no_space', 'no space left for the ledger on the data disk'));

/** Where a create can fail or stand still, in the order it passes them. */
const LEDGER_FAULTS: Readonly<Record<string, number>> = { 'first ledger write': 1, 'second ledger write': 2 };

describe('create', () => {
  test('records the sandbox before its engine exists and its identity before it answers', async () => {
    const seen: { number: number; kind: string; machines: number; state: string | undefined; runtime: boolean }[] = [];
    let machines = (): number => 0;
    const harness = await startLifecycle({
      intercept: async ({ number, kind, record }, apply) => {
        seen.push({ number, kind, machines: machines(), state: record?.state, runtime: record?.runtime !== undefined });
        await apply();
      },
    });
    machines = () => harness.world.machines.size;
    const record = await harness.orchestrator.create({ ...CREATE_BASE, metadata: { app: 'a' }, envVars: { A: '1' } });
    expect(seen).toEqual([
      { number: 1, kind: 'put', machines: 0, state: 'creating', runtime: false },
      { number: 2, kind: 'put', machines: 1, state: 'running', runtime: true },
    ]);
    expect(record).toMatchObject({
      state: 'running',
      alias: 'base',
      metadata: { app: 'a' },
      envVars: { A: '1' },
      defaultUser: 'user',
      envdVersion: '0.6.13',
      backend: 'fake',
      resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
    });
    expect(record.id).toMatch(/^i[a-z0-9]{20}$/);
    expect(record.channelKey).toMatch(/^[0-9a-f]{32}$/);
    expect(record.templateId).toBe(harness.templates.find('base')?.id);
    expect(harness.stored()).toEqual([JSON.parse(JSON.stringify(record))]);
    expect(harness.orchestrator.get(record.id)).toEqual(record);
    expect(harness.orchestrator.target(record.id)).toMatchObject({ kind: 'ready', record });
    expect(harness.orchestrator.list(LIST_ALL)).toMatchObject({ sandboxes: [record], totalRunning: 1 });
    expect(harness.counted).toEqual(['reconciled:0', 'createSucceeded']);
    expect(harness.admission.status()).toMatchObject({ sandboxes: 1, starting: 0 });
  });

  test('the timeout starts when the sandbox is ready, not when it was asked for', async () => {
    const harness = await startLifecycle();
    harness.world.faults.next('activate', { kind: 'slow', milliseconds: 8_000 });
    const asked = harness.clock.now();
    const creating = harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 10 });
    await harness.clock.advance(8_000);
    const record = await creating;
    expect(record.startedAt).toBe(asked);
    expect(record.deadline).toBe(asked + 18_000);
  });

  test('tokens follow the sandbox id and exist only where they are needed', async () => {
    const { orchestrator } = await startLifecycle();
    const open = await orchestrator.create({ ...CREATE_BASE, secure: false });
    expect(orchestrator.accessToken(open)).toBeUndefined();
    expect(orchestrator.trafficAccessToken(open)).toBeUndefined();
    const closed = await orchestrator.create({
      ...CREATE_BASE,
      network: { ...CREATE_BASE.network, allowPublicTraffic: false },
    });
    expect(orchestrator.accessToken(closed)).toMatch(/^[0-9a-f]{64}$/);
    expect(orchestrator.trafficAccessToken(closed)).toMatch(/^[0-9a-f]{64}$/);
    expect(orchestrator.trafficAccessToken(closed)).not.toBe(orchestrator.accessToken(closed));
  });

  test('20 at once all answer, each with its own sandbox', async () => {
    const harness = await startLifecycle();
    const records = await Promise.all(Array.from({ length: 20 }, () => harness.orchestrator.create(CREATE_BASE)));
    expect(new Set(records.map(({ id }) => id)).size).toBe(20);
    expect(new Set(records.map(({ instanceId }) => instanceId)).size).toBe(20);
    expect(new Set(records.map(({ channelKey }) => channelKey)).size).toBe(20);
    expect(harness.world.machines.size).toBe(20);
    expect(harness.orchestrator.list(LIST_ALL)).toMatchObject({ totalRunning: 20 });
    expect(harness.orchestrator.status()).toMatchObject({ createSuccesses: 20, createFails: 0 });
    await Promise.all(records.map(({ id }) => harness.orchestrator.kill(id, 'test')));
    expect(harness.leftovers()).toEqual({});
  });

  test('a caller that goes away cancels nothing', async () => {
    const harness = await startLifecycle();
    const slow = harness.world.faults.next('start', { kind: 'hang' });
    // Nobody ever looks at the outcome.
    void harness.orchestrator.create(CREATE_BASE);
    await slow.hit;
    slow.release();
    await harness.until(() => harness.orchestrator.status().sandboxes.running === 1);
    expect(harness.world.machines.size).toBe(1);
  });

  describe.each([
    ['first ledger write', 'no_space'],
    ['engine start', 'create_failed'],
    ['engine activation', 'create_failed'],
    ['guest API', 'create_failed'],
    ['second ledger write', 'no_space'],
  ] as const)('that fails at the %s', (stage, code) => {
    function broken(): HarnessOptions {
      return {
        intercept: ({ number, kind }, apply) => (kind === 'put' && number === LEDGER_FAULTS[stage] ? fail() : apply()),
        ...(stage === 'guest API'
          ? {
              createEnvd: () => {
                throw new Error('no guest API today');
              },
            }
          : {}),
      };
    }

    test('answers with its class, counts it and leaves nothing anywhere', async () => {
      const harness = await startLifecycle(broken());
      if (stage === 'engine start') harness.world.faults.next('start', { kind: 'fail' });
      if (stage === 'engine activation') harness.world.faults.next('activate', { kind: 'fail' });
      await expect(harness.orchestrator.create(CREATE_BASE)).rejects.toMatchObject({ code });
      expect(harness.leftovers()).toEqual({});
      expect(harness.orchestrator.status()).toMatchObject({ createSuccesses: 0, createFails: 1 });
      expect(harness.counted).toEqual(['reconciled:0', `createFailed:${code}`, 'ended:create-failed']);
      expect(await harness.timersLeft()).toBe(0);
    });
  });

  describe.each(['first ledger write', 'engine start', 'engine activation', 'second ledger write'])(
    'that stands still at the %s',
    (stage) => {
      async function standStill() {
        const reached = Promise.withResolvers<void>();
        let made = '';
        const harness = await startLifecycle({
          intercept: ({ number, kind, id }, apply) => {
            made = id;
            if (kind !== 'put' || number !== LEDGER_FAULTS[stage]) return apply();
            reached.resolve();
            return hang();
          },
        });
        const point = stage === 'engine start' ? 'start' : stage === 'engine activation' ? 'activate' : undefined;
        if (point !== undefined) void harness.world.faults.next(point, { kind: 'hang' }).hit.then(reached.resolve);
        const creating = harness.orchestrator.create(CREATE_BASE);
        const outcome = creating.then(
          () => 'created',
          (error: unknown) => error,
        );
        await reached.promise;
        return { harness, outcome, id: made };
      }

      test('is killed at once: the kill succeeds, the caller learns it, nothing is left', async () => {
        const { harness, outcome, id } = await standStill();
        const before = harness.clock.monotonic();
        await harness.orchestrator.kill(id, 'test');
        expect(harness.clock.monotonic()).toBe(before);
        expect(await outcome).toMatchObject({ code: 'killed', message: 'sandbox was killed' });
        expect(harness.leftovers()).toEqual({});
        expect(harness.orchestrator.status().createFails).toBe(0);
        await expect(harness.orchestrator.kill(id, 'again')).rejects.toMatchObject({ code: 'not_found' });
        expect(await harness.timersLeft()).toBe(0);
      });

      test('fails when it is overdue, is logged and counted, and leaves nothing', async () => {
        const { harness, outcome } = await standStill();
        await harness.clock.advance(50_000);
        const failure = await outcome;
        expect(failure).toMatchObject({ code: 'deadline_exceeded' });
        await harness.clock.advance(0);
        expect(harness.leftovers()).toEqual({});
        expect(harness.orchestrator.status().createFails).toBe(1);
        expect(harness.counted).toContain('createFailed:deadline_exceeded');
        expect(harness.log.find('error')).not.toEqual([]);
      });
    },
  );

  test('an engine that dies before it is ready fails the create with the reason', async () => {
    const harness = await startLifecycle({
      intercept: ({ number, kind }, apply) => (kind === 'put' && number === 2 ? hang() : apply()),
    });
    const creating = harness.orchestrator.create(CREATE_BASE);
    const outcome = creating.catch((error: unknown) => error);
    await harness.until(() => harness.world.machines.size === 1);
    for (const machine of harness.world.machines.values()) machine.end('guest-panic', 'kernel panic');
    expect(await outcome).toMatchObject({
      code: 'create_failed',
      message: 'the sandbox ended before it was ready: guest-panic',
    });
    await harness.clock.advance(0);
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted).toContain('ended:guest-panic');
  });

  test('what an engine start makes after it was given up is stopped', async () => {
    const late = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      wrapBackend: (backend) => ({
        ...backend,
        // Ignores its signal, as a backend must not.
        restore: async (snapshot, plan) => {
          await late.promise;
          return await backend.restore(snapshot, plan);
        },
      }),
    });
    const outcome = harness.orchestrator.create(CREATE_BASE).catch((error: unknown) => error);
    await harness.until(() => harness.stored().length === 1);
    const id = harness.stored()[0]?.id ?? '';
    const killing = harness.orchestrator.kill(id, 'test').catch((error: unknown) => error);
    expect(await outcome).toMatchObject({ code: 'killed' });
    expect(harness.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
    await harness.clock.advance(2_000);
    late.resolve();
    expect(await killing).toBeUndefined();
    expect(harness.leftovers()).toEqual({});
  });

  test.each([
    ['an unknown template', { template: 'nope' }, 'not_found', "template 'nope' not found"],
    ['an unknown tag', { template: 'base:v9' }, 'not_found', "tag 'v9' does not exist for template 'base'"],
    ['a malformed reference', { template: 'a b' }, 'invalid_argument', 'invalid template reference'],
    ['a timeout of 0', { timeoutSeconds: 0 }, 'invalid_argument', 'timeout must be greater than 0'],
    ['a negative timeout', { timeoutSeconds: -1 }, 'invalid_argument', 'timeout must be greater than 0'],
  ])('%s is refused before anything exists', async (_case, changes, code, message) => {
    const harness = await startLifecycle();
    await expect(harness.orchestrator.create({ ...CREATE_BASE, ...changes })).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted).toEqual(['reconciled:0']);
  });

  test('a full host refuses with the limit, and a create right after a kill that returned is admitted', async () => {
    const harness = await startLifecycle({ limits: { maxSandboxes: 2 } });
    const [first] = await Promise.all([
      harness.orchestrator.create(CREATE_BASE),
      harness.orchestrator.create(CREATE_BASE),
    ]);
    await expect(harness.orchestrator.create(CREATE_BASE)).rejects.toMatchObject({
      code: 'capacity',
      retryAfterSeconds: 5,
      message: expect.stringContaining('orchestrator.max_sandboxes'),
    });
    await harness.orchestrator.kill(first.id, 'test');
    await harness.orchestrator.create(CREATE_BASE);
  });

  test('of 20 at once no more are admitted than fit', async () => {
    const harness = await startLifecycle({ limits: { maxSandboxes: 7 } });
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, () => harness.orchestrator.create(CREATE_BASE)),
    );
    expect(outcomes.filter(({ status }) => status === 'fulfilled')).toHaveLength(7);
    expect(harness.world.machines.size).toBe(7);
    expect(harness.orchestrator.status().createFails).toBe(0);
  });
});
