import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_ALWAYS_DENIED, DEFAULT_NETWORK_POLICY, SILENT_LOG } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { createExec } from '../exec.ts';
import { createFakeInternet, INTERNET } from '../testing/fake-internet.ts';
import { enterSlot, GUEST_DEVICE, REFUSAL } from '../testing/slot-guest.ts';
import type { NetworkSlots } from './slot.ts';
import { createNetworkSlots, gatewayNamespacePath } from './slots.ts';

describe('what a server leaves', () => {
  const clock = createRealClock();
  const exec = createExec({ clock });

  function open(runtimeDir: string, prefix: string, maxConnections = 40): Promise<NetworkSlots> {
    return createNetworkSlots({
      runtimeDir,
      prefix,
      exec,
      clock,
      log: SILENT_LOG,
      uplink: 'none',
      dnsServers: ['198.51.100.53'],
      alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
      uidBase: 61_000,
      pool: { low: 1, high: 1 },
      device: () => GUEST_DEVICE,
      maxConnections,
    });
  }

  async function mountsBelow(directory: string): Promise<readonly string[]> {
    const text = await readFile('/proc/self/mountinfo', 'utf8');
    return text.split('\n').filter((line) => line.includes(directory));
  }

  async function links(): Promise<string> {
    return exec({ argv: ['ip', '-brief', 'link'], deadlineMs: 5_000 });
  }

  test('an orderly end leaves no namespace, mount, interface or setting', async () => {
    const runtimeDir = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    try {
      const settings = async () =>
        Promise.all(
          ['ipv4/ip_forward', 'ipv6/conf/all/forwarding'].map((key) => readFile(`/proc/sys/net/${key}`, 'utf8')),
        );
      const before = { links: await links(), settings: await settings() };
      const slots = await open(runtimeDir, 'a');
      await slots.acquire(DEFAULT_NETWORK_POLICY);
      expect(await mountsBelow(runtimeDir)).not.toEqual([]);
      expect({ links: await links(), settings: await settings() }).toEqual(before);
      await slots[Symbol.asyncDispose]();
      expect(await mountsBelow(runtimeDir)).toEqual([]);
      expect(await readdir(join(runtimeDir, 'netns'))).toEqual([]);
      expect({ links: await links(), settings: await settings() }).toEqual(before);
    } finally {
      await rm(runtimeDir, { recursive: true, force: true });
    }
  });

  async function killed(victim: ChildProcess): Promise<void> {
    victim.kill('SIGKILL');
    await new Promise((resolve) => victim.once('exit', resolve));
  }

  test('kill -9 leaves namespaces that the next server of that prefix removes, and only those', async () => {
    const runtimeDir = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    const neighbour = await open(runtimeDir, 'b');
    try {
      await killed(await startVictim(runtimeDir, 'a'));
      const left = await mountsBelow(join(runtimeDir, 'netns', 'a-'));
      expect(left.length).toBeGreaterThanOrEqual(2);
      const foreign = await mountsBelow(join(runtimeDir, 'netns', 'b-'));
      // One that ends before it knows what may go removes nothing.
      await (await open(runtimeDir, 'a'))[Symbol.asyncDispose]();
      expect(await mountsBelow(join(runtimeDir, 'netns', 'a-'))).toEqual(left);
      const successor = await open(runtimeDir, 'a');
      expect(await successor.removeLeftovers()).toBe(left.length - 1);
      await successor[Symbol.asyncDispose]();
      expect(await mountsBelow(join(runtimeDir, 'netns', 'a-'))).toEqual([]);
      expect(await mountsBelow(join(runtimeDir, 'netns', 'b-'))).toEqual(foreign);
    } finally {
      await neighbour[Symbol.asyncDispose]();
      await rm(runtimeDir, { recursive: true, force: true });
    }
  });

  test('a slot that is adopted keeps its open connections, obeys its new policy and goes like any other', async () => {
    const runtimeDir = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    const path = (name: string) => join(runtimeDir, name);
    try {
      const victim = await startVictim(runtimeDir, 'a');
      await using _internet = await createFakeInternet({
        ...{ exec, path: path('internet') },
        behind: gatewayNamespacePath({ runtimeDir, prefix: 'a' }),
      });
      const former = { networkNamespacePath: path('netns/a-slot-1'), release: async () => {} };
      await using guest = await enterSlot({ exec, slot: former, path: path('guest') });
      expect(await guest.tcp(INTERNET.web, 7, { keep: 'held' })).toMatchObject({ outcome: 'connected' });
      await killed(victim);
      const inside = ['nsenter', `--net=${former.networkNamespacePath}`, 'nft'] as const;
      // As if a former version had had other rules.
      const other = `insert rule inet aenv pass ct state new ip daddr ${INTERNET.web} drop`;
      await exec({ argv: [...inside, other], deadlineMs: 10_000 });
      await using successor = await open(runtimeDir, 'a', 7);
      const slot = await successor.adopt(1, { ...DEFAULT_NETWORK_POLICY, denyOut: [INTERNET.other] });
      await successor.removeLeftovers();
      expect(await guest.ask({ op: 'send', keep: 'held', payload: 'again' })).toMatchObject({ reply: 'again' });
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
      expect((await guest.tcp(INTERNET.other)).outcome).toMatch(REFUSAL);
      expect(await exec({ argv: [...inside, 'list table inet aenv'], deadlineMs: 10_000 })).toContain(
        'ct count over 7 ',
      );
      await using next = await enterSlot({
        ...{ exec, path: path('next') },
        slot: await successor.acquire(DEFAULT_NETWORK_POLICY),
      });
      expect(next.slot.networkNamespacePath).not.toBe(slot.networkNamespacePath);
      expect(await next.tcp(INTERNET.other)).toMatchObject({ outcome: 'connected' });
      await slot.release();
      expect(await mountsBelow(path('netns/a-slot-1 '))).toEqual([]);
      expect((await guest.tcp(INTERNET.web, 80, { timeoutMs: 500 })).outcome).not.toBe('connected');
    } finally {
      expect(await mountsBelow(path('netns'))).toEqual([]);
      await rm(runtimeDir, { recursive: true, force: true });
    }
  });

  async function startVictim(runtimeDir: string, prefix: string): Promise<ChildProcess> {
    const script = `
      import { DEFAULT_ALWAYS_DENIED, DEFAULT_NETWORK_POLICY, SILENT_LOG } from '@agentenv/core';
      import { createRealClock } from '@agentenv/core/testing';
      import { createExec } from './exec.ts';
      import { createNetworkSlots } from './network/slots.ts';
      const clock = createRealClock();
      const slots = await createNetworkSlots({
        runtimeDir: ${JSON.stringify(runtimeDir)}, prefix: ${JSON.stringify(prefix)}, exec: createExec({ clock }), clock,
        log: SILENT_LOG, uplink: 'none', dnsServers: ['198.51.100.53'], alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
        uidBase: 61000, pool: { low: 1, high: 1 }, device: () => ${JSON.stringify(GUEST_DEVICE)},
        hostAddresses: () => [],
      });
      await slots.acquire(DEFAULT_NETWORK_POLICY);
      process.stdout.write('ready');
      setInterval(() => {}, 60_000);
    `;
    const child = spawn(process.execPath, ['--input-type=module-typescript', '--eval', script], {
      cwd: new URL('..', import.meta.url).pathname,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await new Promise<void>((resolve, reject) => {
      child.stdout?.once('data', () => resolve());
      child.once('exit', () => reject(new Error('the victim ended too early')));
    });
    return child;
  }
});
