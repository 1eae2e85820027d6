import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_ALWAYS_DENIED, DEFAULT_NETWORK_POLICY, type NetworkPolicy, SILENT_LOG } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { type Command, createExec } from '../exec.ts';
import { createFakeInternet, type FakeInternet, INTERNET } from '../testing/fake-internet.ts';
import { startNamespaceProgram } from '../testing/namespace-program.ts';
import { enterSlot, GUEST_DEVICE, type Outcome, REFUSAL, type SlotGuest } from '../testing/slot-guest.ts';
import { GUEST_ADDRESSING } from './addressing.ts';
import type { NetworkSlots } from './slot.ts';
import { createNetworkSlots, gatewayNamespacePath } from './slots.ts';

const PREFIX = 'test';
const MAX_CONNECTIONS = 40;
/** A rejection is an answer; anything that looks like a dropped packet takes the probe's two seconds. */
const FAST_MS = 1_000;
/** TCP clients hear a reset, others an ICMP error. */
const REFUSED = { outcome: expect.stringMatching(REFUSAL) };

describe('network slots', () => {
  const clock = createRealClock();
  const plainExec = createExec({ clock });
  const stack = new AsyncDisposableStack();
  let breakNextTransaction = false;
  let runtimeDir: string;
  let slots: NetworkSlots;
  let internet: FakeInternet;
  let shared: SlotGuest;

  /** Appends a line the kernel refuses to the next transaction, when a test asks for it. */
  async function exec(command: Command, signal?: AbortSignal): Promise<string> {
    const isTransaction = command.argv.includes('nft') && command.stdin !== undefined;
    if (!breakNextTransaction || !isTransaction) return plainExec(command, signal);
    breakNextTransaction = false;
    const stdin = `${command.stdin}add rule inet aenv no_such_chain accept\n`;
    return plainExec({ ...command, stdin }, signal);
  }

  beforeAll(async () => {
    runtimeDir = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    stack.defer(() => rm(runtimeDir, { recursive: true, force: true }));
    slots = await createNetworkSlots({
      runtimeDir,
      prefix: PREFIX,
      exec,
      clock,
      log: SILENT_LOG,
      uplink: 'none',
      dnsServers: [INTERNET.dns],
      alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
      uidBase: 61_000,
      pool: { low: 1, high: 2 },
      hostAddresses: () => [INTERNET.hostPublic],
      device: () => GUEST_DEVICE,
      maxConnections: MAX_CONNECTIONS,
    });
    stack.use(slots);
    internet = stack.use(
      await createFakeInternet({
        exec: plainExec,
        path: join(runtimeDir, 'internet'),
        behind: gatewayNamespacePath({ runtimeDir, prefix: PREFIX }),
      }),
    );
    shared = stack.use(await guestWith());
  });

  afterAll(() => stack.disposeAsync());

  async function guestWith(policy: Partial<NetworkPolicy> = {}): Promise<SlotGuest> {
    const slot = await slots.acquire({ ...DEFAULT_NETWORK_POLICY, ...policy });
    return enterSlot({ exec: plainExec, slot, path: join(runtimeDir, 'guests', String(slot.index)) });
  }

  /** The shared guest, from now on under that policy. */
  async function guestUnder(policy: Partial<NetworkPolicy> = {}): Promise<SlotGuest> {
    await shared.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, ...policy });
    return shared;
  }

  async function ping(guest: SlotGuest, host: string): Promise<string> {
    const argv = ['nsenter', `--net=${guest.path}`, 'busybox', 'ping', '-c', '1', '-W', '2', host] as const;
    return plainExec({ argv: [...argv], deadlineMs: 10_000 }).then(
      () => 'answered',
      () => 'failed',
    );
  }

  describe('by default', () => {
    test('TCP, UDP and ICMP reach the internet over IPv4 and IPv6, under the address of the gateway', async () => {
      const guest = await guestUnder();
      await internet.arrivals();
      expect(await guest.tcp(INTERNET.web)).toMatchObject({
        outcome: 'connected',
        reply: expect.stringContaining(JSON.stringify({ local: INTERNET.web, remote: internet.seenAs.ipv4 })),
      });
      expect(await guest.tcp(INTERNET.web6)).toMatchObject({
        outcome: 'connected',
        reply: expect.stringContaining(JSON.stringify({ local: INTERNET.web6, remote: internet.seenAs.ipv6 })),
      });
      expect(await guest.udp(INTERNET.web)).toMatchObject({ outcome: 'answered', reply: 'ping' });
      expect(await guest.udp(INTERNET.web6)).toMatchObject({ outcome: 'answered', reply: 'ping' });
      expect(await ping(guest, INTERNET.web)).toBe('answered');
      expect(await ping(guest, INTERNET.web6)).toBe('answered');
    });

    test("names are answered at the gateway of the slot, over UDP and TCP, by the host's resolver", async () => {
      const guest = await guestUnder();
      await internet.arrivals();
      const gateway = GUEST_ADDRESSING.gatewayIpv4;
      expect(await guest.ask({ op: 'dns', host: gateway })).toMatchObject({ outcome: 'answered', reply: INTERNET.web });
      expect(await guest.ask({ op: 'dns-tcp', host: gateway })).toMatchObject({ outcome: 'answered' });
      const arrivals = await internet.arrivals();
      expect(arrivals.map(({ protocol, local, port }) => ({ protocol, local, port }))).toEqual([
        { protocol: 'udp', local: INTERNET.dns, port: 53 },
        { protocol: 'tcp', local: INTERNET.dns, port: 53 },
      ]);
    });

    test('private and special addresses are refused at once, although they would answer', async () => {
      const guest = await guestUnder({ allowInternetAccess: true, allowOut: ['0.0.0.0/0', '::/0'] });
      const gatewayPath = gatewayNamespacePath({ runtimeDir, prefix: PREFIX });
      await using outside = await startNamespaceProgram(gatewayPath, './guest-probe.ts');
      for (const host of INTERNET.private) {
        expect(await outside.request<Outcome>({ op: 'tcp', host, port: 80 })).toMatchObject({ outcome: 'connected' });
      }
      await internet.arrivals();
      for (const address of INTERNET.private) {
        for (const attempt of [await guest.tcp(address), await guest.udp(address)]) {
          expect({ address, ...attempt }).toMatchObject({ address, ...REFUSED });
          expect(attempt.ms).toBeLessThan(FAST_MS);
        }
      }
      expect(await internet.arrivals()).toEqual([]);
    });

    test('an address of the host is refused, whatever range it is in', async () => {
      const guest = await guestUnder({ allowOut: [INTERNET.hostPublic] });
      expect(await guest.tcp(INTERNET.hostPublic)).toMatchObject(REFUSED);
    });
  });

  describe('allow_internet_access', () => {
    test('off means off: TCP, UDP, ICMP, IPv6 and names, refused at once', async () => {
      await using guest = await guestWith({ allowInternetAccess: false });
      await internet.arrivals();
      const gateway = GUEST_ADDRESSING.gatewayIpv4;
      const attempts = [
        await guest.tcp(INTERNET.web),
        await guest.tcp(INTERNET.web6),
        await guest.udp(INTERNET.web),
        await guest.udp(INTERNET.web6),
        await guest.udp(gateway, 53),
        await guest.ask({ op: 'dns-tcp', host: gateway }),
        await guest.tcp(INTERNET.dns, 53),
        await guest.udp(INTERNET.dns, 53),
      ];
      for (const attempt of attempts) {
        expect(attempt).toMatchObject(REFUSED);
        expect(attempt.ms).toBeLessThan(FAST_MS);
      }
      expect((await guest.ask({ op: 'dns', host: gateway })).outcome).not.toBe('answered');
      expect(await ping(guest, INTERNET.web)).toBe('failed');
      expect(await internet.arrivals()).toEqual([]);
    });

    test('off with an allow-list reaches the list, and names', async () => {
      const guest = await guestUnder({ allowInternetAccess: false, allowOut: [INTERNET.web, INTERNET.web6] });
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
      expect(await guest.tcp(INTERNET.web6)).toMatchObject({ outcome: 'connected' });
      expect(await guest.tcp(INTERNET.other)).toMatchObject(REFUSED);
      expect(await guest.tcp(INTERNET.other6)).toMatchObject(REFUSED);
      const gateway = GUEST_ADDRESSING.gatewayIpv4;
      expect(await guest.ask({ op: 'dns', host: gateway })).toMatchObject({ outcome: 'answered' });
    });
  });

  describe('rules', () => {
    test('allow beats deny, for overlapping ranges of both families', async () => {
      const guest = await guestUnder({
        allowOut: ['198.51.100.7/32', '2001:db8:1::7'],
        denyOut: ['198.51.100.0/24', '198.51.100.0/25', '2001:db8:1::/48', '198.51.100.8'],
      });
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
      expect(await guest.tcp(INTERNET.web6)).toMatchObject({ outcome: 'connected' });
      expect(await guest.tcp(INTERNET.other)).toMatchObject(REFUSED);
      expect(await guest.tcp(INTERNET.other6)).toMatchObject(REFUSED);
    });

    test('denying everything leaves only what is allowed', async () => {
      const guest = await guestUnder({ allowOut: [INTERNET.web], denyOut: ['0.0.0.0/0', '::/0'] });
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
      expect(await guest.udp(INTERNET.other)).toMatchObject(REFUSED);
      expect(await guest.tcp(INTERNET.web6)).toMatchObject(REFUSED);
    });

    test('an update takes effect for new connections and lets established ones go on', async () => {
      const guest = await guestUnder();
      expect(await guest.tcp(INTERNET.web, 7, { keep: 'held' })).toMatchObject({ outcome: 'connected' });
      await guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, denyOut: [INTERNET.web] });
      expect(await guest.tcp(INTERNET.web)).toMatchObject(REFUSED);
      expect(await guest.ask({ op: 'send', keep: 'held', payload: 'still' })).toMatchObject({ reply: 'still' });
      await guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, allowInternetAccess: true });
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
    });

    test('a failed update leaves the old rules whole', async () => {
      const guest = await guestUnder({ denyOut: [INTERNET.other] });
      breakNextTransaction = true;
      await expect(guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, denyOut: [INTERNET.web] })).rejects.toThrow(
        'the network policy could not be applied',
      );
      await expect(
        guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, denyOut: ['not an address'] }),
      ).rejects.toMatchObject({ code: 'invalid_argument' });
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
      expect(await guest.tcp(INTERNET.other)).toMatchObject(REFUSED);
      expect(await guest.ask({ op: 'dns', host: GUEST_ADDRESSING.gatewayIpv4 })).toMatchObject({ outcome: 'answered' });
    });

    test('no connection falls between two policies while they alternate', async () => {
      const guest = await guestUnder({ denyOut: [INTERNET.other] });
      const policies = [
        { ...DEFAULT_NETWORK_POLICY, denyOut: [INTERNET.other] },
        { ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false, allowOut: [INTERNET.web] },
      ];
      let applied = 0;
      const updates = (async () => {
        while (applied < 12) {
          const policy = policies[applied % 2];
          if (policy !== undefined) await guest.slot.applyPolicy(policy);
          applied++;
        }
      })();
      let attempts = 0;
      while (applied < 12) {
        expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
        expect(await guest.tcp(INTERNET.other)).toMatchObject(REFUSED);
        attempts++;
      }
      await updates;
      expect(attempts).toBeGreaterThan(3);
    });
  });

  describe('isolation', () => {
    test('nothing of a neighbour, the slot, the gateway or the host side is reachable', async () => {
      await using guest = await guestWith({ allowOut: ['0.0.0.0/0', '::/0'] });
      await using neighbour = await guestWith();
      const gatewayPath = gatewayNamespacePath({ runtimeDir, prefix: PREFIX });
      const listeners = await Promise.all(
        [gatewayPath, guest.slot.networkNamespacePath, neighbour.slot.networkNamespacePath, neighbour.path].map(
          (path) => startNamespaceProgram(path, './internet-server.ts'),
        ),
      );
      try {
        const index = neighbour.slot.index;
        const targets = [
          GUEST_ADDRESSING.gatewayIpv4,
          GUEST_ADDRESSING.gatewayIpv6,
          guest.slot.hostInteractionIp,
          neighbour.slot.hostInteractionIp,
          ...[2 * guest.slot.index, 2 * guest.slot.index + 1, 2 * index, 2 * index + 1].flatMap((host) => [
            `10.12.0.${host}`,
            `fd00:ae:1::${host.toString(16)}`,
          ]),
          '203.0.113.1',
          '2001:db8:ffff::1',
        ];
        for (const target of targets) {
          expect({ target, ...(await guest.tcp(target)) }).toMatchObject({ target, ...REFUSED });
          expect({ target, ...(await guest.tcp(target, 7)) }).toMatchObject({ target, ...REFUSED });
        }
        for (const listener of listeners) expect(await listener.request({ op: 'seen' })).toEqual([]);
      } finally {
        await Promise.all(listeners.map((listener) => listener[Symbol.asyncDispose]()));
      }
    });

    test('nothing outside starts a connection to a sandbox', async () => {
      await using guest = await guestWith();
      const { ask } = guest;
      expect(await ask({ op: 'tcp', host: INTERNET.web, port: 7, keep: 'x' })).toMatchObject({ outcome: 'connected' });
      const server = await startNamespaceProgram(guest.path, './internet-server.ts');
      const gatewayPath = gatewayNamespacePath({ runtimeDir, prefix: PREFIX });
      const outside = await startNamespaceProgram(gatewayPath, './guest-probe.ts');
      try {
        const slotAddress = `10.12.0.${2 * guest.slot.index + 1}`;
        for (const host of [slotAddress, '169.254.0.22']) {
          const attempt = await outside.request<Outcome>({ op: 'tcp', host, port: 80, timeoutMs: 300 });
          expect(attempt.outcome).not.toBe('connected');
        }
        expect(await server.request({ op: 'seen' })).toEqual([]);
      } finally {
        await server[Symbol.asyncDispose]();
        await outside[Symbol.asyncDispose]();
      }
    });

    test("packets with a source address that is not the guest's go nowhere", async () => {
      await using guest = await guestWith();
      await plainExec({
        argv: ['nsenter', `--net=${guest.path}`, 'ip', '-batch', '-'],
        stdin: 'addr add 203.0.113.77/32 dev eth0\naddr add fd00:ae::77/64 dev eth0 nodad\n',
        deadlineMs: 5_000,
      });
      await internet.arrivals();
      const spoofed = { timeoutMs: 300 };
      expect((await guest.udp(INTERNET.web, 7, { ...spoofed, source: '203.0.113.77' })).outcome).toBe('timeout');
      expect((await guest.udp(INTERNET.web6, 7, { ...spoofed, source: 'fd00:ae::77' })).outcome).toBe('timeout');
      expect(await internet.arrivals()).toEqual([]);
      expect(await guest.udp(INTERNET.web, 7, { source: '169.254.0.22' })).toMatchObject({ outcome: 'answered' });
    });

    test('one sandbox cannot fill the connection table of all', async () => {
      await using guest = await guestWith();
      const outcomes: string[] = [];
      for (let index = 0; index < MAX_CONNECTIONS + 5; index++) {
        outcomes.push((await guest.tcp(INTERNET.web, 7, { keep: `held-${index}` })).outcome);
      }
      expect(new Set(outcomes.slice(0, MAX_CONNECTIONS - 5))).toEqual(new Set(['connected']));
      expect(outcomes.at(-1)).toMatch(REFUSAL);
      expect(await shared.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
    });
  });

  describe('the pool', () => {
    test('slots in use differ in number, namespace, host address and uid', async () => {
      const before = slots.status().inUse;
      const taken = await Promise.all(Array.from({ length: 5 }, () => slots.acquire(DEFAULT_NETWORK_POLICY)));
      try {
        for (const key of ['index', 'networkNamespacePath', 'hostInteractionIp', 'uid'] as const) {
          expect(new Set(taken.map((slot) => slot[key])).size).toBe(taken.length);
        }
        expect(slots.status().inUse).toBe(before + 5);
      } finally {
        await Promise.all(taken.map((slot) => slot.release()));
      }
      expect(slots.status().inUse).toBe(before);
    });

    test('is refilled to its watermark; a released slot is gone and the next one is clean', async () => {
      const slot = await slots.acquire({ ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false });
      await Promise.all([slot.release(), slot.release()]);
      await expect(slot.applyPolicy(DEFAULT_NETWORK_POLICY)).rejects.toMatchObject({ code: 'conflict' });
      await vi.waitFor(() => expect(slots.status().ready).toBeGreaterThanOrEqual(1), 10_000);
      expect(await readdir(join(runtimeDir, 'netns'))).not.toContain(`${PREFIX}-slot-${slot.index}`);
      await using guest = await guestWith();
      expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
    });

    test('an acquire that is aborted takes nothing', async () => {
      const before = slots.status().inUse;
      const controller = new AbortController();
      const waiting = Array.from({ length: 6 }, () => slots.acquire(DEFAULT_NETWORK_POLICY, controller.signal));
      controller.abort();
      const settled = await Promise.allSettled(waiting);
      for (const result of settled) if (result.status === 'fulfilled') await result.value.release();
      expect(settled.some(({ status }) => status === 'rejected')).toBe(true);
      expect(slots.status().inUse).toBe(before);
    });
  });
});
