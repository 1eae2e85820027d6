import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_ALWAYS_DENIED, DEFAULT_NETWORK_POLICY, type Log, SILENT_LOG } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { createExec } from '../exec.ts';
import { processStartTime } from '../processes.ts';
import { createFakeInternet, createTestNamespace, type FakeInternet, INTERNET } from '../testing/fake-internet.ts';
import { startNamespaceProgram } from '../testing/namespace-program.ts';
import { enterSlot, GUEST_DEVICE, type Outcome, REFUSAL, type SlotGuest } from '../testing/slot-guest.ts';
import { GUEST_ADDRESSING } from './addressing.ts';
import type { NetworkSlots } from './slot.ts';
import { createNetworkSlots } from './slots.ts';
import { createPastaUplink, pastaArguments } from './uplink.ts';

const PREFIX = 'test';
const GATEWAY = GUEST_ADDRESSING.gatewayIpv4;
/** An address of the host beside the one its default route leaves by. */
const HOST_SECOND = '198.51.100.200';
const FAST_MS = 1_000;

describe('the pasta uplink', () => {
  const clock = createRealClock();
  const exec = createExec({ clock });
  const stack = new AsyncDisposableStack();
  const warnings: string[] = [];
  const log: Log = { ...SILENT_LOG, warn: (_fields, message) => void warnings.push(message) };
  let directory: string;
  let host: string;
  let resolvConf: string;
  let internet: FakeInternet;
  let slots: NetworkSlots;
  let guest: SlotGuest;

  /** Replaces the host's resolv.conf as its managers do. */
  async function nameServer(address: string): Promise<void> {
    await writeFile(`${resolvConf}.new`, `# by a test\nnameserver ${address}\n`);
    await rename(`${resolvConf}.new`, resolvConf);
  }

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    stack.defer(() => rm(directory, { recursive: true, force: true }));
    host = join(directory, 'host');
    resolvConf = join(directory, 'resolv.conf');
    await nameServer(INTERNET.dns);
    stack.use(await createTestNamespace(exec, host, [`addr add ${HOST_SECOND}/32 dev lo`]));
    internet = stack.use(await createFakeInternet({ exec, path: join(directory, 'internet'), behind: host }));
    // pasta reads the host's own file; it runs where that one is ours and the host's network is the namespace.
    const inHost = 'mount --bind "$1" /etc/resolv.conf; netns=$2; shift 2; exec nsenter --net="$netns" "$@"';
    slots = stack.use(
      await createNetworkSlots({
        runtimeDir: directory,
        prefix: PREFIX,
        exec,
        clock,
        log,
        uplink: 'pasta',
        uplinkWrapper: ['unshare', '--mount', 'sh', '-ec', inHost, 'sh', resolvConf, host],
        resolverFiles: [resolvConf],
        alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
        uidBase: 61_000,
        pool: { low: 1, high: 1 },
        hostAddresses: () => [internet.seenAs.ipv4, internet.seenAs.ipv6, HOST_SECOND],
        device: () => GUEST_DEVICE,
      }),
    );
    const slot = await slots.acquire(DEFAULT_NETWORK_POLICY);
    guest = stack.use(await enterSlot({ exec, slot, path: join(directory, 'guest') }));
  });

  afterAll(() => stack.disposeAsync());

  test('carries TCP, UDP and names over both families, under the address of the host', async () => {
    await internet.arrivals();
    for (const { address, source } of [
      { address: INTERNET.web, source: internet.seenAs.ipv4 },
      { address: INTERNET.web6, source: internet.seenAs.ipv6 },
    ]) {
      expect(await guest.tcp(address)).toMatchObject({ outcome: 'connected', reply: expect.stringContaining(source) });
      expect(await guest.udp(address)).toMatchObject({ outcome: 'answered', reply: 'ping' });
    }
    expect(await guest.ask({ op: 'dns', host: GATEWAY })).toMatchObject({ outcome: 'answered', reply: INTERNET.web });
    expect(await guest.ask({ op: 'dns-tcp', host: GATEWAY })).toMatchObject({ outcome: 'answered' });
  });

  test('carries a large transfer unharmed', async () => {
    const payload = 'aenv'.repeat(500_000);
    const attempt = await guest.tcp(INTERNET.web, 7, { payload, expectBytes: payload.length, timeoutMs: 20_000 });
    expect(attempt.outcome).toBe('connected');
    expect(attempt.reply === payload).toBe(true);
  });

  test('a port nobody listens on and a reset are told at once', async () => {
    for (const address of [INTERNET.web, INTERNET.web6]) {
      const closed = await guest.tcp(address, 81);
      expect(closed.outcome).toBe('ECONNREFUSED');
      expect(closed.ms).toBeLessThan(FAST_MS);
      const reset = await guest.tcp(address, 9);
      expect(reset.outcome).toBe('ECONNRESET');
      expect(reset.ms).toBeLessThan(FAST_MS);
    }
  });

  test('nothing of the host is reachable: its addresses, its loopback, its gateway address', async () => {
    await using service = await startNamespaceProgram(host, './internet-server.ts', ['127.0.0.1', HOST_SECOND]);
    const gatewayPath = join(directory, 'netns', `${PREFIX}-gateway`);
    await using gateway = await startNamespaceProgram(gatewayPath, './guest-probe.ts');
    expect(await gateway.request<Outcome>({ op: 'tcp', host: HOST_SECOND, port: 80 })).toMatchObject({
      outcome: 'connected',
    });
    await service.request({ op: 'seen' });
    await guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, allowOut: ['0.0.0.0/0', '::/0'] });
    for (const address of [HOST_SECOND, internet.seenAs.ipv4, internet.seenAs.ipv6, '127.0.0.1', '169.254.53.53']) {
      expect({ address, ...(await guest.tcp(address)) }).toMatchObject({
        address,
        outcome: expect.stringMatching(REFUSAL),
      });
      expect((await guest.udp(address)).outcome).toMatch(REFUSAL);
    }
    expect(await service.request({ op: 'seen' })).toEqual([]);
  });

  test('listens to nobody on the host', async () => {
    const listening = await exec({ argv: ['nsenter', `--net=${host}`, 'ss', '-Htln'], deadlineMs: 5_000 });
    expect(listening.trim()).toBe('');
  });

  test('is started again when it dies', async () => {
    const pidFile = join(directory, 'netns', `${PREFIX}-pasta.pid`);
    const pid = Number(await readFile(pidFile, 'utf8'));
    process.kill(pid, 'SIGKILL');
    await vi.waitFor(
      async () => {
        expect(Number(await readFile(pidFile, 'utf8'))).not.toBe(pid);
        expect(await guest.tcp(INTERNET.web, 80, { timeoutMs: 500 })).toMatchObject({ outcome: 'connected' });
      },
      { timeout: 15_000, interval: 50 },
    );
    expect(warnings).toContain('the uplink ended, sandboxes have no internet');
  });

  test("a change of the host's resolver is followed without a restart", async () => {
    await nameServer(INTERNET.other);
    await vi.waitFor(
      async () => {
        await internet.arrivals();
        await guest.ask({ op: 'dns', host: GATEWAY });
        expect((await internet.arrivals()).map(({ local }) => local)).toEqual([INTERNET.other]);
      },
      { timeout: 10_000, interval: 50 },
    );
  });

  test('a resolver on the host itself is reached, and nothing else there', async () => {
    const own = ['127.0.0.53', internet.seenAs.ipv4];
    await using local = await startNamespaceProgram(host, './internet-server.ts', own);
    for (const address of own) {
      await nameServer(address);
      await vi.waitFor(
        async () => {
          await local.request({ op: 'seen' });
          const attempt = await guest.ask({ op: 'dns', host: GATEWAY, timeoutMs: 500 });
          expect(attempt).toMatchObject({ outcome: 'answered', reply: INTERNET.web });
          expect(await local.request({ op: 'seen' })).toMatchObject([{ local: address, port: 53 }]);
        },
        { timeout: 15_000, interval: 50 },
      );
      expect((await guest.tcp(address)).outcome).toMatch(REFUSAL);
    }
    await nameServer(INTERNET.dns);
  });
});

describe('an uplink a dead server left', () => {
  test('is ended by the next server of that prefix', async () => {
    const clock = createRealClock();
    const exec = createExec({ clock });
    const directory = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    const stack = new AsyncDisposableStack();
    stack.defer(() => rm(directory, { recursive: true, force: true }));
    try {
      const host = join(directory, 'host');
      stack.use(await createTestNamespace(exec, host, []));
      stack.use(await createFakeInternet({ exec, path: join(directory, 'internet'), behind: host }));
      const gatewayPath = join(directory, 'netns', `${PREFIX}-gateway`);
      const pidFile = join(directory, 'netns', `${PREFIX}-pasta.pid`);
      await createTestNamespace(exec, gatewayPath, []);
      const orphan: ChildProcess = spawn(
        'nsenter',
        [`--net=${host}`, 'pasta', ...pastaArguments(gatewayPath, pidFile, { localResolver: undefined })],
        { stdio: 'ignore' },
      );
      const gone = new Promise<void>((resolve) => orphan.once('exit', () => resolve()));
      await vi.waitFor(async () => expect(await readFile(pidFile, 'utf8')).toMatch(/^\d+/), {
        timeout: 5_000,
        interval: 20,
      });
      const slots = stack.use(
        await createNetworkSlots({
          runtimeDir: directory,
          prefix: PREFIX,
          exec,
          clock,
          log: SILENT_LOG,
          uplink: 'none',
          dnsServers: [INTERNET.dns],
          alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
          uidBase: 61_000,
          pool: { low: 0, high: 0 },
        }),
      );
      await gone;
      expect(slots.status()).toEqual({ ready: 0, inUse: 0 });
    } finally {
      await stack.disposeAsync();
    }
  });

  test('carries on under the next one where nothing changed, and is looked after', async () => {
    const clock = createRealClock();
    const exec = createExec({ clock });
    const directory = await mkdtemp(join(tmpdir(), 'aenv-net-'));
    const stack = new AsyncDisposableStack();
    stack.defer(() => rm(directory, { recursive: true, force: true }));
    try {
      const host = join(directory, 'host');
      stack.use(await createTestNamespace(exec, host, []));
      stack.use(await createFakeInternet({ exec, path: join(directory, 'internet'), behind: host }));
      const gatewayPath = join(directory, 'gateway');
      stack.use(await createTestNamespace(exec, gatewayPath, []));
      const pidFile = join(directory, 'pasta.pid');
      const warnings: string[] = [];
      const log: Log = { ...SILENT_LOG, warn: (_fields, message) => void warnings.push(message) };
      const open = () => createPastaUplink({ gatewayPath, pidFile, clock, log, wrapper: ['nsenter', `--net=${host}`] });
      const pid = async () => Number(await readFile(pidFile, 'utf8').catch(() => 'none'));
      const former = open();
      await former.run({ localResolver: undefined });
      const carrying = await pid();
      former.abandon();
      const next = stack.use(open());
      await next.run({ localResolver: undefined });
      expect(await pid()).toBe(carrying);
      expect(await processStartTime(carrying)).toBeDefined();
      await exec({ argv: ['kill', '-9', String(carrying)], deadlineMs: 5_000 });
      await vi.waitFor(async () => expect([carrying, Number.NaN]).not.toContain(await pid()), {
        timeout: 10_000,
        interval: 20,
      });
      const second = await pid();
      next.abandon();
      const changed = stack.use(open());
      await changed.run({ localResolver: '127.0.0.53' });
      expect(await pid()).not.toBe(second);
      expect(await processStartTime(second)).toBeUndefined();
      // As a server leaves one that dies before its uplink has told its pid.
      const third = await pid();
      changed.abandon();
      await rm(pidFile);
      await stack.use(open()).run({ localResolver: undefined });
      expect([third, Number.NaN]).not.toContain(await pid());
      expect(await processStartTime(third)).toBeUndefined();
      expect(warnings).toEqual(['the uplink ended, sandboxes have no internet']);
    } finally {
      await stack.disposeAsync();
    }
  });
});
