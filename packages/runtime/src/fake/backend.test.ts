import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  DEFAULT_ALWAYS_DENIED,
  DEFAULT_NETWORK_POLICY,
  decideEgress,
  egressPolicy,
  type InstanceId,
  PlatformError,
  parseAddress,
  parseRules,
  type SandboxId,
} from '@agentenv/core';
import { createFakeClock, createRealClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import type { LaunchPlan } from '../backend.ts';
import { describeBackendContract } from '../testing/contract.ts';
import type { BackendHarness, ProvokedEnd } from '../testing/harness.ts';
import { createFileArtifacts } from './artifacts.ts';
import { createFakeBackend } from './backend.ts';
import { createFakeWorld } from './world.ts';

const ROOTFS = { path: '/images/base', digest: 'd1' };
const RESOURCES = { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 };
const INTERNET_HOST = '198.51.100.7';

async function makeHarness(): Promise<BackendHarness> {
  const root = await mkdtemp(join(tmpdir(), 'aenv-fake-'));
  const world = createFakeWorld({ clock: createRealClock(), artifacts: createFileArtifacts() });
  const open = () => createFakeBackend({ world, templates: join(root, 'templates') });
  const address = parseAddress(INTERNET_HOST);
  if (address === undefined) throw new Error('unreachable');
  const power: Record<Exclude<ProvokedEnd, 'engine-died'>, readonly string[]> = {
    'guest-poweroff': ['poweroff'],
    'guest-reboot': ['reboot'],
    'guest-panic': ['sh', '-c', 'echo c > /proc/sysrq-trigger'],
  };
  return {
    backend: open(),
    rootfs: ROOTFS,
    resources: RESOURCES,
    internetHost: INTERNET_HOST,
    deadlineMs: 1_000,
    emptyDirectory: () => mkdtemp(join(root, 'capture-')),
    async provoke(sandbox, end) {
      if (end === 'engine-died') world.machines.get(sandbox.instanceId)?.end(end, 'killed by the test');
      else {
        await sandbox.agent.spawn({
          user: 'root',
          argv: power[end],
          env: {},
          cwd: '',
          defaultCwd: '',
          stdin: false,
          tag: '',
          config: new Uint8Array(0),
          killAfterMs: 0,
        });
      }
    },
    async reachesInternet(sandbox) {
      const machine = world.machines.get(sandbox.instanceId);
      if (machine === undefined) return false;
      const denied = parseRules(DEFAULT_ALWAYS_DENIED, 'always_denied_cidrs');
      return decideEgress(egressPolicy(machine.policy, denied), { kind: 'address', address }).verdict === 'accept';
    },
    crash: async () => open(),
    leftovers: async () => [...world.machines.values()].map(({ engine, sandboxId }) => `${engine} runs ${sandboxId}`),
    [Symbol.asyncDispose]: () => rm(root, { recursive: true, force: true }),
  };
}

describeBackendContract('fake', makeHarness);

describe('fake backend', () => {
  function planFor(name: string): LaunchPlan {
    return {
      sandboxId: `i${name}` as SandboxId,
      instanceId: `instance-${name}` as InstanceId,
      templateId: 'base',
      resources: RESOURCES,
      network: DEFAULT_NETWORK_POLICY,
      channelKey: new Uint8Array(16),
      hostname: name,
    };
  }

  async function open() {
    const clock = createFakeClock();
    const world = createFakeWorld({ clock });
    const backend = createFakeBackend({ world });
    const template = await backend.prepareTemplate(ROOTFS, RESOURCES);
    return { clock, world, backend, template };
  }

  const sleep = (seconds: number) => ({
    user: 'user',
    argv: ['sleep', String(seconds)],
    env: {},
    cwd: '',
    defaultCwd: '',
    stdin: false,
    tag: '',
    config: new Uint8Array(0),
    killAfterMs: 0,
  });

  test('time in the guest is the given clock, and stands still with it', async () => {
    const { clock, backend, template } = await open();
    const sandbox = await backend.restore(template, planFor('a'));
    const process = await sandbox.agent.spawn(sleep(10));
    let exited = false;
    void process.exit.then(() => {
      exited = true;
    });
    await clock.advance(4_000);
    await sandbox.freeze();
    await clock.advance(60_000);
    await sandbox.thaw();
    await clock.advance(5_999);
    expect(exited).toBe(false);
    await clock.advance(1);
    expect(exited).toBe(true);
    await backend[Symbol.asyncDispose]();
    expect(clock.pendingTimers).toBe(0);
  });

  test('a process killed by its own deadline says so', async () => {
    const { clock, backend, template } = await open();
    const { agent } = await backend.restore(template, planFor('a'));
    const process = await agent.spawn({ ...sleep(600), killAfterMs: 5_000 });
    await clock.advance(5_000);
    expect(await process.exit).toMatchObject({ signal: 9, reason: 'deadline' });
    await backend[Symbol.asyncDispose]();
  });

  test('a quiesced guest thaws by itself when its lease ends', async () => {
    const { clock, backend, template } = await open();
    const { agent } = await backend.restore(template, planFor('a'));
    const process = await agent.spawn(sleep(1));
    await agent.quiesce(5_000);
    let exited = false;
    void process.exit.then(() => {
      exited = true;
    });
    await clock.advance(5_999);
    expect(exited).toBe(false);
    await clock.advance(1);
    expect(exited).toBe(true);
    await backend[Symbol.asyncDispose]();
  });

  test.for(['start', 'activate'] as const)(
    'a failure planned at %s fails one create and leaves nothing',
    async (point) => {
      const { world, backend, template } = await open();
      world.faults.next(point, { kind: 'fail', error: new PlatformError('no_space', 'the disk is full') });
      await expect(backend.restore(template, planFor('a'))).rejects.toMatchObject({ code: 'no_space' });
      expect(world.machines.size).toBe(0);
      await backend.restore(template, planFor('b'));
      expect(world.machines.size).toBe(1);
      await backend[Symbol.asyncDispose]();
      expect(world.machines.size).toBe(0);
    },
  );

  test('a hanging create is ended by its signal, a slow one by the clock', async () => {
    const { clock, world, backend, template } = await open();
    const hang = world.faults.next('activate', { kind: 'hang' });
    const controller = new AbortController();
    const hanging = backend.restore(template, planFor('a'), controller.signal);
    await hang.hit;
    expect(world.machines.size).toBe(1);
    controller.abort();
    await expect(hanging).rejects.toMatchObject({ code: 'canceled' });
    expect(world.machines.size).toBe(0);
    world.faults.next('start', { kind: 'slow', milliseconds: 3_000 });
    const slow = backend.restore(template, planFor('b'));
    await clock.advance(2_999);
    expect(world.machines.size).toBe(0);
    await clock.advance(1);
    await slow;
    expect(world.machines.size).toBe(1);
    await backend[Symbol.asyncDispose]();
  });

  test('a failed stop leaves the machine and may be tried again', async () => {
    const { world, backend, template } = await open();
    const sandbox = await backend.restore(template, planFor('a'));
    world.faults.next('stop', { kind: 'fail', error: new PlatformError('internal', 'the engine does not die') });
    await expect(sandbox.stop()).rejects.toMatchObject({ code: 'internal' });
    expect(world.machines.size).toBe(1);
    await sandbox.stop();
    expect(world.machines.size).toBe(0);
    await backend[Symbol.asyncDispose]();
  });

  test('a failed capture lets the guest go on; a failed policy keeps the old one', async () => {
    const { world, backend, template } = await open();
    const sandbox = await backend.restore(template, planFor('a'));
    world.faults.next('capture', { kind: 'fail', error: new PlatformError('no_space', 'the disk is full') });
    await expect(sandbox.capture('/captures/a')).rejects.toMatchObject({ code: 'no_space' });
    await sandbox.agent.ping();
    world.faults.next('network', { kind: 'fail' });
    const policy = { ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false };
    await expect(sandbox.applyNetwork(policy)).rejects.toBeInstanceOf(PlatformError);
    expect(world.machineOf('ia').policy).toBe(DEFAULT_NETWORK_POLICY);
    await backend[Symbol.asyncDispose]();
  });

  test('a damaged capture is refused and starts nothing', async () => {
    const { world, backend, template } = await open();
    await world.artifacts.put(template.directory, 'disk.json', Buffer.from('[]'));
    await expect(backend.restore(template, planFor('a'))).rejects.toMatchObject({ code: 'create_failed' });
    expect(world.machines.size).toBe(0);
  });

  test('servers inside and forwards to the host carry bytes with half-close', async () => {
    const { world, backend, template } = await open();
    const { agent } = await backend.restore(template, planFor('a'));
    const { guest } = world.machineOf('ia');
    guest.serve(8080, (connection) => connection.pipe(connection));
    const client = await agent.connectPort(8080);
    client.end('echo me');
    expect(Buffer.concat(await client.toArray()).toString()).toBe('echo me');
    await expect(agent.connectPort(8081)).rejects.toMatchObject({ details: { status: 'REFUSED' } });
    await using forward = await agent.listenPort(49_983, (connection) => connection.end('from the host'));
    expect(forward).toBeDefined();
    expect(Buffer.concat(await guest.dial(49_983).toArray()).toString()).toBe('from the host');
    await backend[Symbol.asyncDispose]();
  });
});
