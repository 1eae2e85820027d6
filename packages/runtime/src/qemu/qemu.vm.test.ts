import { appendFile, readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { DEFAULT_NETWORK_POLICY, type InstanceId, type SandboxId } from '@agentenv/core';
import { createRecordingLog } from '@agentenv/core/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Backend, RunningSandbox, StoredSnapshot } from '../backend.ts';
import { INTERNET } from '../testing/fake-internet.ts';
import { provokeInGuest, runInGuest } from '../testing/guest-run.ts';
import { createLaunchPlans } from '../testing/launch-plans.ts';
import { createQemuWorld, type QemuWorld } from '../testing/qemu-world.ts';
import { engineLayout } from './engine-host.ts';

const RESOURCES = { vcpus: 1, memoryMB: 512, diskSizeMB: 4_096 };
const DEADLINE_MS = 30_000;
/** A sandbox that ends by itself is gone, with its reason, within two seconds; the rest is room for a busy machine. */
const END_MS = 10_000;

describe('qemu backend', () => {
  const log = createRecordingLog();
  const live: RunningSandbox[] = [];
  let world: QemuWorld;
  let backend: Backend;
  let template: StoredSnapshot;
  const planFor = createLaunchPlans('iqemu0000', RESOURCES);

  beforeAll(async () => {
    world = await createQemuWorld({ log });
    backend = world.open();
    template = await backend.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
  });
  afterEach(async () => {
    await Promise.all(live.splice(0).map((sandbox) => sandbox.stop()));
    log.lines.length = 0;
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  async function restore(from = backend, plan = planFor()): Promise<RunningSandbox> {
    const sandbox = await from.restore(template, plan);
    live.push(sandbox);
    return sandbox;
  }

  const settled = <T>(check: () => T | Promise<T>) => vi.waitFor(check, { timeout: DEADLINE_MS, interval: 50 });

  test('an engine has its own user, session, namespace and groups, no privileges, and a system call filter', async () => {
    const { identity } = await restore();
    const pid = Number(identity.pid);
    const status = await readFile(`/proc/${pid}/status`, 'utf8');
    const field = (name: string) => new RegExp(`^${name}:[ \\t]*(.*?)[ \\t]*$`, 'm').exec(status)?.[1];
    const uid = field('Uid')?.split('\t')[0];
    expect(Number(uid)).toBeGreaterThanOrEqual(62_000);
    expect(field('Groups')).toBe('');
    expect(field('CapEff')).toBe('0000000000000000');
    expect(field('NoNewPrivs')).toBe('1');
    expect(field('Seccomp')).toBe('2');
    expect(field('NSsid')).toBe(String(pid));
    const namespace = async (of: string) => (await stat(`/proc/${of}/ns/net`)).ino;
    expect(await namespace(String(pid))).not.toBe(await namespace('self'));
    const server = await readFile('/proc/self/cgroup', 'utf8');
    const groups = (await readFile(`/proc/${pid}/cgroup`, 'utf8')).split('\n');
    expect(groups.filter((line) => line.includes(String(identity.name)) && !server.includes(line))).not.toEqual([]);
    const layout = engineLayout(world.home, world.runtimeDir);
    for (const directory of await readdir(layout.sockets)) {
      const { uid: owner, mode } = await stat(join(layout.sockets, directory));
      expect([owner, mode & 0o777]).toEqual([0, 0o700]);
    }
  });

  test('a guest that floods its console costs the host nothing', async () => {
    const { agent, identity } = await restore();
    const before = (await readFile(`/proc/${Number(identity.pid)}/status`, 'utf8')).match(/VmRSS:\s+(\d+)/)?.[1];
    const flood = 'head -c 2000000 /dev/zero | tr "\\0" x > /dev/ttyS0';
    expect((await runInGuest(agent, ['sh', '-c', flood], { user: 'root' })).code).toBe(0);
    const after = (await readFile(`/proc/${Number(identity.pid)}/status`, 'utf8')).match(/VmRSS:\s+(\d+)/)?.[1];
    expect(Number(after) - Number(before)).toBeLessThan(40_000);
  });

  test('a panic says why', async () => {
    const sandbox = await restore();
    await provokeInGuest(sandbox.agent, ['sh', '-c', 'echo c > /proc/sysrq-trigger']);
    expect(await sandbox.ended).toEqual({
      reason: 'guest-panic',
      detail: "the guest's kernel panicked: sysrq triggered crash",
    });
    await settled(async () => expect(await world.leftovers()).toEqual([]));
  });

  test('an engine that is killed ends its sandbox and everything it held, unasked', async () => {
    const sandbox = await restore();
    const started = performance.now();
    process.kill(Number(sandbox.identity.pid), 'SIGKILL');
    expect((await sandbox.ended).reason).toBe('engine-died');
    expect(performance.now() - started).toBeLessThan(END_MS);
    await settled(async () => expect(await world.leftovers()).toEqual([]));
    expect(log.find('info', 'the virtual machine ended')[0]?.fields).toMatchObject({ reason: 'engine-died' });
  });

  test('a capture that is aborted leaves the guest running and the directory empty', async () => {
    const sandbox = await restore();
    const directory = await world.emptyDirectory();
    const abort = new AbortController();
    const capture = sandbox.capture(directory, abort.signal);
    setTimeout(() => abort.abort(), 20);
    await expect(capture).rejects.toMatchObject({ code: 'canceled' });
    expect((await runInGuest(sandbox.agent, ['echo', 'still here'])).stdout).toBe('still here\n');
    expect(await readdir(directory)).toEqual([]);
  });

  test('the clock of a restored guest is right, and clones have their own random numbers', async () => {
    const [left, right] = await Promise.all([restore(), restore()]);
    expect(Math.abs(await left.agent.clockSkew())).toBeLessThan(1_000);
    const random = ['head', '-c', '16', '/dev/urandom'];
    const outputs = await Promise.all(
      [left, right].map(({ agent }) => runInGuest(agent, ['sh', '-c', `${random.join(' ')} | od -An -tx1`])),
    );
    expect(outputs[0]?.stdout).not.toBe(outputs[1]?.stdout);
  });

  test('names are resolved by the gateway, and the guest has its fixed addresses', async () => {
    const { agent } = await restore();
    const addresses = await runInGuest(agent, ['ip', '-o', 'addr', 'show', 'scope', 'global']);
    expect(addresses.stdout).toContain('169.254.0.22/30');
    expect(addresses.stdout).toContain('fd00:ae::2/64');
    const fetched = await runInGuest(agent, [
      'curl',
      '-sS',
      '-m',
      '10',
      '-o',
      '/dev/null',
      '-w',
      '%{http_code}',
      `http://${INTERNET.web}/`,
    ]);
    expect(fetched.stdout).toBe('200');
  });

  test('closing a backend ends what it is still making, and what it runs', async () => {
    const closing = world.open();
    const running = await closing.restore(template, planFor());
    const outcomes = Promise.allSettled([
      closing.restore(template, planFor()),
      closing.create(world.artifacts.rootfs.base, planFor()),
      closing.prepareTemplate(world.artifacts.rootfs.base, { ...RESOURCES, memoryMB: 640 }),
    ]);
    await settled(async () => expect((await world.leftovers()).join()).toMatch(/process .*process .*process /));
    await closing[Symbol.asyncDispose]();
    expect((await running.ended).reason).toBe('stopped');
    // What was done before is stopped; the template takes seconds and cannot have been.
    expect((await outcomes)[2]?.status).toBe('rejected');
    expect(await world.leftovers()).toEqual([]);
  });

  test('a capture whose root file system is not what it was is refused before anything starts', async () => {
    const rootfs = { ...template.manifest.rootfs, sha256: 'of a former set-up' };
    for (const other of [
      { ...rootfs, path: '/nowhere.ext4' },
      { ...rootfs, size: rootfs.size - 1 },
    ]) {
      const snapshot = { ...template, manifest: { ...template.manifest, rootfs: other } };
      const message = `the root file system of the snapshot is not on this host any more: ${other.path}`;
      await expect(backend.boot(snapshot, planFor())).rejects.toMatchObject({ code: 'conflict', message });
      await expect(backend.restore(snapshot, planFor())).rejects.toMatchObject({ code: 'conflict', message });
    }
    expect(await world.leftovers()).toEqual([]);
  });

  test('a capture finds its root file system where set-up has moved it to', async () => {
    const rootfs = { ...template.manifest.rootfs, path: '/former/place/base.ext4' };
    await using moved = await backend.restore({ ...template, manifest: { ...template.manifest, rootfs } }, planFor());
    expect((await runInGuest(moved.agent, ['cat', '/etc/hostname'])).code).toBe(0);
  });

  describe('a template whose files were changed', () => {
    test('is refused by this server and made anew by the next', async () => {
      const next = world.open();
      await appendFile(join(template.directory, template.manifest.vmState?.path ?? ''), 'x');
      await expect(backend.restore(template, planFor())).rejects.toMatchObject({ code: 'create_failed' });
      template = await next.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
      backend = next;
      expect((await runInGuest((await restore()).agent, ['true'])).code).toBe(0);
    });
  });

  describe('the pool', () => {
    async function pooled(size: number): Promise<Backend> {
      const withPool = world.open({ pool: { low: size, high: size } });
      withPool.warm(await withPool.prepareTemplate(world.artifacts.rootfs.base, RESOURCES));
      await settled(() => expect(withPool.status().pool.ready).toBe(size));
      return withPool;
    }

    test('hands out guests that take on the identity of their sandbox, and is filled again', async () => {
      await using withPool = await pooled(2);
      const plans = [planFor(), planFor(), planFor()];
      const sandboxes = await Promise.all(plans.map((plan) => restore(withPool, plan)));
      expect(withPool.status().pool).toMatchObject({ hits: 2, misses: 1 });
      for (const [index, { agent }] of sandboxes.entries()) {
        const { stdout } = await runInGuest(agent, ['sh', '-c', 'hostname; cat /run/e2b/.E2B_SANDBOX_ID /etc/hosts']);
        expect(stdout).toContain(`${plans[index]?.hostname}\n${plans[index]?.sandboxId}`);
        expect(stdout).toContain(`127.0.1.1 ${plans[index]?.hostname}\n`);
        expect(Math.abs(await agent.clockSkew())).toBeLessThan(1_000);
      }
      await settled(() => expect(withPool.status().pool.ready).toBe(2));
    });

    test('a guest with a policy of its own has it before it runs', async () => {
      await using withPool = await pooled(1);
      const plan = { ...planFor(), network: { ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false } };
      const { agent } = await restore(withPool, plan);
      expect(withPool.status().pool.hits).toBe(1);
      expect((await runInGuest(agent, ['timeout', '5', 'bash', '-c', `: >/dev/tcp/${INTERNET.web}/80`])).code).not.toBe(
        0,
      );
    });

    test('replaces an entry whose engine died, and leaves nothing when the backend closes', async () => {
      const withPool = await pooled(1);
      const engine = (await world.leftovers()).find((line) => line.startsWith('process '));
      process.kill(Number(engine?.split(' ')[1]), 'SIGKILL');
      await settled(() => expect(log.find('warn', 'pool entry was lost')).toHaveLength(1));
      await settled(() => expect(withPool.status().pool.ready).toBe(1));
      await withPool[Symbol.asyncDispose]();
      expect(await world.leftovers()).toEqual([]);
    });
  });
});

describe('a full data disk', () => {
  test('gives the guest an error and leaves the server and the sandbox answering', async () => {
    const log = createRecordingLog();
    await using world = await createQemuWorld({ log, homeSizeMB: 320 });
    const backend = world.open();
    const template = await backend.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
    const sandbox = await backend.restore(template, {
      ...{ sandboxId: 'ifull' as SandboxId, instanceId: 'full' as InstanceId, templateId: 'base', hostname: 'full' },
      ...{ resources: RESOURCES, network: DEFAULT_NETWORK_POLICY, channelKey: new Uint8Array(16).fill(7) },
    });
    // It may wait for ever for its lost pages, so nobody waits for it.
    const filler = 'tr "\\0" x </dev/zero | head -c 400M >/home/user/fill';
    await provokeInGuest(sandbox.agent, ['sh', '-c', filler]);
    const failures = () => log.find('error', 'a disk of the sandbox failed');
    await vi.waitFor(() => expect(failures()).not.toEqual([]), { timeout: 120_000, interval: 100 });
    expect(failures()[0]?.fields).toMatchObject({ node: 'upper', reason: 'No space left on device' });
    expect((await sandbox.agent.ping()).monotonicNs).toBeGreaterThan(0n);
    expect((await runInGuest(sandbox.agent, ['echo', 'alive'])).stdout).toBe('alive\n');
    await sandbox.stop();
    expect((await sandbox.ended).reason).toBe('stopped');
  });
});
