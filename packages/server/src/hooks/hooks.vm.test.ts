import type { Agent } from '@agentenv/agent';
import { createQemuWorld, INTERNET, runInGuest } from '@agentenv/runtime/testing';
import { expect, test } from 'vitest';
import { describeHookCaptures } from '../testing/hook-captures-suite.ts';
import { describeHookOperations } from '../testing/hook-operations-suite.ts';
import type { HookHost } from '../testing/hook-world.ts';
import { startHookServer } from '../testing/hook-world.ts';
import { describeHooks, idOf } from '../testing/hooks-suite.ts';
import { type HookAnswer, startRecordingExtension } from '../testing/recording-extension.ts';

/** Of the interface an extension adds; nobody else uses it. */
const VPN = '192.0.2.129';

async function openHost(pool = { low: 0, high: 0 }): Promise<HookHost> {
  const world = await createQemuWorld();
  return {
    open: () => world.open({ pool }),
    rootfs: world.artifacts.rootfs.base,
    resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
    slotsInUse: () => world.slots.status().inUse,
    [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
  };
}

describeHooks('qemu', () => openHost(), [describeHookOperations, describeHookCaptures]);

test('qemu hooks/68 machines in the pool are nobody’s; one that is taken sends its start before it goes on', async () => {
  await using ext = await startRecordingExtension();
  await using host = await openHost({ low: 1, high: 1 });
  await using server = await startHookServer({ host, extensionUrl: ext.url, timeoutMs: 5_000 });
  const create = () => server.api('POST', '/sandboxes', { templateID: 'base' });
  const ready = () => expect.poll(() => server.backend.status().pool.ready, { timeout: 60_000, interval: 100 }).toBe(1);
  await ready();
  expect(ext.calls).toEqual([]);
  expect((await create()).status).toBe(201);
  expect(server.backend.status().pool).toMatchObject({ hits: 1 });
  expect(ext.calls.map(({ hook }) => hook)).toEqual(['start-resume']);
  await ready();
  ext.answer('start-resume', { status: 422, body: 'no' });
  expect((await create()).status).toBe(400);
  expect(server.backend.status().pool).toMatchObject({ hits: 2 });
  expect(ext.calls.map(({ hook }) => hook)).toEqual(['start-resume', 'start-resume', 'stop']);
  expect(ext.of('stop')[0]?.body.sandboxInstanceId).toBe(ext.of('start-resume')[1]?.body.sandboxInstanceId);
});

test('qemu a hook enters the namespace of the slot: its interface and its rules work, survive updates and go with the slot', async () => {
  await using world = await createQemuWorld();
  await using ext = await startRecordingExtension();
  const resources = { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 };
  const host: HookHost = {
    open: () => world.open(),
    ...{ rootfs: world.artifacts.rootfs.base, resources, slotsInUse: () => world.slots.status().inUse },
    async [Symbol.asyncDispose]() {},
  };
  await using server = await startHookServer({ host, extensionUrl: ext.url, timeoutMs: 10_000 });
  const inNamespace = (path: string, script: string) =>
    world.exec({ argv: ['nsenter', `--net=${path}`, 'sh', '-ec', script], deadlineMs: 10_000 });
  let namespace = '';
  const prepare: HookAnswer = (_request, response, { body }) => {
    namespace = String(body.networkNamespacePath);
    const script = `ip link add vpn0 type veth peer name vpn1; ip addr add ${VPN}/32 dev vpn0; ip link set vpn0 up
      nft 'table inet operator { chain seen { type filter hook forward priority -10; ip daddr ${INTERNET.other} counter reject; }; }'`;
    inNamespace(namespace, script).then(
      () => response.writeHead(200).end('{}'),
      (error: unknown) => response.writeHead(500).end(String(error)),
    );
  };
  /** What a program in the sandbox gets from a host of the internet. */
  const fetchIn = async (id: string, address: string): Promise<string> => {
    const target = server.orchestrator.target(id);
    if (target.kind !== 'ready') throw new Error(`sandbox ${id} does not run`);
    const command = `curl -sS --max-time 20 http://${address}/ 2>&1 || echo refused`;
    return (await runInGuest(target.agent as Agent, ['sh', '-c', command])).stdout;
  };
  const expectPrepared = async (id: string) => {
    expect(await fetchIn(id, INTERNET.other)).toMatch(/refused/);
    expect(await inNamespace(namespace, 'ip -4 addr show dev vpn0; nft list table inet operator')).toMatch(
      new RegExp(`${VPN}[^]*counter packets [1-9]`),
    );
  };
  const setRules = async (id: string, rules: object) =>
    expect((await server.api('PUT', `/sandboxes/${id}/network`, rules)).status).toBe(204);

  ext.answer('start-resume', prepare);
  const id = idOf(await server.api('POST', '/sandboxes', { templateID: 'base', timeout: 300 }));
  await expectPrepared(id);
  expect(await fetchIn(id, INTERNET.web)).toMatch(/"local":/);
  await setRules(id, { denyOut: [INTERNET.web] });
  expect(await fetchIn(id, INTERNET.web)).toMatch(/refused/);
  await expectPrepared(id);
  await setRules(id, {});
  expect(await fetchIn(id, INTERNET.web)).toMatch(/"local":/);
  await expectPrepared(id);

  const former = namespace;
  expect((await server.api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
  expect((await server.api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
  expect(namespace).not.toBe('');
  await expectPrepared(id);
  expect((await server.api('DELETE', `/sandboxes/${id}`)).status).toBe(204);
  ext.reset();
  const next = idOf(await server.api('POST', '/sandboxes', { templateID: 'base', timeout: 300 }));
  const path = String(ext.of('start-resume')[0]?.body.networkNamespacePath);
  expect(await inNamespace(path, 'ip link; nft list tables')).not.toMatch(/vpn0|operator/);
  expect(await fetchIn(next, INTERNET.other)).toMatch(/"local":/);
  await expect(inNamespace(former, 'ip link show vpn0')).rejects.toThrow();
}, 600_000);
