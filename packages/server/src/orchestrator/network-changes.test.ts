import { DEFAULT_NETWORK_POLICY } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, startLifecycle } from '../testing/lifecycle-harness.ts';

const PRIVATE_INGRESS = { ...DEFAULT_NETWORK_POLICY, allowPublicTraffic: false, denyOut: ['192.0.2.0/24'] };
const ALLOW_LIST = { allowInternetAccess: false, allowOut: ['198.51.100.7/32'], denyOut: [] };
const CLEARED = { allowInternetAccess: undefined, allowOut: [], denyOut: [] };

describe('replacing the egress rules', () => {
  test('is on disk and in force, and keeps who may come in', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create({ ...CREATE_BASE, network: PRIVATE_INGRESS });
    await harness.orchestrator.updateNetwork(id, ALLOW_LIST);
    const expected = { ...PRIVATE_INGRESS, ...ALLOW_LIST };
    expect(harness.orchestrator.get(id).network).toEqual(expected);
    expect(harness.world.machineOf(id).policy).toEqual(expected);
    expect(harness.stored()[0]?.network).toMatchObject(ALLOW_LIST);
    await harness.orchestrator.updateNetwork(id, CLEARED);
    expect(harness.world.machineOf(id).policy).toEqual({ ...DEFAULT_NETWORK_POLICY, allowPublicTraffic: false });
  });

  test('is kept over pause and resume, and given to the children of a fork', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    await harness.orchestrator.updateNetwork(id, ALLOW_LIST);
    await harness.orchestrator.pause(id);
    await expect(harness.orchestrator.updateNetwork(id, CLEARED)).rejects.toMatchObject({
      code: 'conflict',
      message: `sandbox '${id}' is paused`,
    });
    await harness.orchestrator.resume(id, 300);
    expect(harness.world.machineOf(id).policy).toMatchObject(ALLOW_LIST);
    const [child] = await harness.orchestrator.fork(id, { count: 1, timeoutSeconds: 60 });
    if (child?.kind !== 'started') throw new Error('the child did not start');
    expect(harness.world.machineOf(child.record.id).policy).toMatchObject(ALLOW_LIST);
  });

  test('that the network refuses leaves the former rules, in force and on disk', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create({ ...CREATE_BASE, network: PRIVATE_INGRESS });
    harness.world.faults.next('network', { kind: 'fail' });
    await expect(harness.orchestrator.updateNetwork(id, ALLOW_LIST)).rejects.toMatchObject({
      code: 'internal',
      message: 'the network policy could not be applied; the former one stays',
    });
    expect(harness.orchestrator.get(id).network).toEqual(PRIVATE_INGRESS);
    expect(harness.world.machineOf(id).policy).toEqual(PRIVATE_INGRESS);
    expect(harness.stored()[0]?.network).toMatchObject({ denyOut: ['192.0.2.0/24'], allowOut: [] });
    await harness.orchestrator.updateNetwork(id, ALLOW_LIST);
    expect(harness.world.machineOf(id).policy).toMatchObject(ALLOW_LIST);
  });

  test('that cannot be written changes nothing', async () => {
    let broken = false;
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        if (broken && record?.network.allowInternetAccess === false) throw new Error('the disk is full');
        await apply();
      },
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    broken = true;
    await expect(harness.orchestrator.updateNetwork(id, ALLOW_LIST)).rejects.toMatchObject({ code: 'internal' });
    expect(harness.world.machineOf(id).policy).toEqual(DEFAULT_NETWORK_POLICY);
    expect(harness.orchestrator.get(id).network).toEqual(DEFAULT_NETWORK_POLICY);
  });

  test('that hangs does not hold a kill up', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const network = harness.world.faults.next('network', { kind: 'hang' });
    const update = harness.orchestrator.updateNetwork(id, ALLOW_LIST).catch((error: unknown) => error);
    await network.hit;
    const killed = harness.orchestrator.kill(id, 'test');
    await harness.clock.advance(2_000);
    await killed;
    expect(await update).toMatchObject({ code: 'killed' });
    network.release();
    expect(harness.leftovers()).toEqual({});
  });
});
