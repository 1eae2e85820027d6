import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

async function paused(harness: LifecycleHarness, autoResume = true): Promise<string> {
  const { id } = await harness.orchestrator.create({ ...CREATE_BASE, autoResume, timeoutSeconds: 77 });
  await harness.orchestrator.pause(id);
  return id;
}

const resumes = (harness: LifecycleHarness): number =>
  harness.counted.filter((call) => call.startsWith('resumeSucceeded')).length;

describe('resume by traffic', () => {
  test('is once for any number of requests, for as long as was asked for last', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    expect(harness.orchestrator.target(id).kind).toBe('asleep');
    await Promise.all(Array.from({ length: 1_000 }, () => harness.orchestrator.wake(id)));
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    expect(harness.orchestrator.get(id)).toMatchObject({
      state: 'running',
      timeoutSeconds: 77,
      deadline: harness.clock.now() + 77_000,
    });
    expect(resumes(harness)).toBe(1);
  });

  test('joins a resume that is under way, and keeps what that asked for', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    const fault = harness.world.faults.next('activate', { kind: 'hang' });
    const resuming = harness.orchestrator.resume(id, 10);
    await fault.hit;
    expect(harness.orchestrator.target(id).kind).toBe('asleep');
    const waking = harness.orchestrator.wake(id);
    fault.release();
    await Promise.all([resuming, waking]);
    expect(harness.orchestrator.get(id).timeoutSeconds).toBe(10);
    expect(resumes(harness)).toBe(1);
  });

  test('waits for a pause that is under way', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create({ ...CREATE_BASE, autoResume: true, timeoutSeconds: 77 });
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const pausing = harness.orchestrator.pause(id);
    await capture.hit;
    expect(harness.orchestrator.target(id).kind).toBe('asleep');
    const waking = harness.orchestrator.wake(id);
    capture.release();
    await pausing;
    await waking;
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    expect(resumes(harness)).toBe(1);
  });

  test('leaves the sandbox paused when it fails, and the next request tries anew', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    harness.world.faults.next('start', { kind: 'fail' });
    await expect(harness.orchestrator.wake(id)).rejects.toMatchObject({ code: 'create_failed' });
    expect(harness.orchestrator.get(id).state).toBe('paused');
    await harness.orchestrator.wake(id);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
  });

  test('is refused to sandboxes that did not ask for it, that are gone, and by a server that ends', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness, false);
    expect(harness.orchestrator.target(id).kind).toBe('not-proxyable');
    await expect(harness.orchestrator.wake(id)).rejects.toMatchObject({ code: 'conflict' });
    await harness.orchestrator.kill(id, 'test');
    await expect(harness.orchestrator.wake(id)).rejects.toMatchObject({ code: 'not_found' });
    const other = await paused(harness);
    const ending = harness.orchestrator[Symbol.asyncDispose]();
    await expect(harness.orchestrator.wake(other)).rejects.toMatchObject({ code: 'unavailable' });
    await ending;
  });
});
