import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  DEFAULT_ALWAYS_DENIED,
  DEFAULT_NETWORK_POLICY,
  decideEgress,
  egressPolicy,
  NEVER_INTERNET,
  type NetworkPolicy,
  parseAddress,
  parseRules,
  SILENT_LOG,
} from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createExec } from '../exec.ts';
import { createFakeInternet, createTestNamespace, INTERNET, ipInNamespace } from '../testing/fake-internet.ts';
import { type NamespaceProgram, startNamespaceProgram } from '../testing/namespace-program.ts';
import { enterSlot, GUEST_DEVICE, REFUSAL, type SlotGuest } from '../testing/slot-guest.ts';
import { GUEST_ADDRESSING } from './addressing.ts';
import type { NetworkSlot, NetworkSlots } from './slot.ts';
import { createNetworkSlots, gatewayNamespacePath } from './slots.ts';

const PREFIX = 'policy';
const CONFIGURED = [...DEFAULT_ALWAYS_DENIED, '192.0.2.128/25'];
const ALWAYS_DENIED = parseRules([...CONFIGURED, ...NEVER_INTERNET], 'always denied');
/** Two ordinary hosts of each family, and two that nothing opens. */
const TARGETS = [INTERNET.web, INTERNET.other, INTERNET.web6, INTERNET.other6, '10.99.0.1', 'fd99::1'];

const everywhere4 = ['0.0.0.0/0', '0.0.0.0/1', '128.0.0.0/1', '198.51.100.0/24', '198.51.100.0/29', '198.51.100.8/29'];
const everywhere6 = ['::/0', '8000::/1', '2001:db8::/32', '2001:db8:1::/125', '2001:db8:1::8'];
const near4 = fc
  .tuple(fc.constantFrom(...TARGETS.filter((target) => target.includes('.'))), fc.integer({ min: 0, max: 32 }))
  .map(([address, prefix]) => `${address}/${prefix}`);
const near6 = fc
  .tuple(fc.constantFrom(...TARGETS.filter((target) => target.includes(':'))), fc.integer({ min: 0, max: 128 }))
  .map(([address, prefix]) => `${address}/${prefix}`);
const anyRules = fc.array(fc.oneof(near4, near6, fc.constantFrom(...everywhere4, ...everywhere6)), { maxLength: 5 });
const anyPolicy = fc.record({
  allowInternetAccess: fc.constantFrom(undefined, true, false),
  allowOut: anyRules,
  denyOut: anyRules,
});

describe('policies in force', { timeout: 240_000 }, () => {
  const clock = createRealClock();
  const exec = createExec({ clock });
  const stack = new AsyncDisposableStack();
  let runtimeDir: string;
  let slots: NetworkSlots;
  let guest: SlotGuest;

  beforeAll(async () => {
    runtimeDir = await mkdtemp(join(tmpdir(), 'aenv-policy-'));
    stack.defer(() => rm(runtimeDir, { recursive: true, force: true }));
    slots = stack.use(
      await createNetworkSlots({
        ...{ runtimeDir, prefix: PREFIX, exec, clock, log: SILENT_LOG, uplink: 'none', uidBase: 61_000 },
        dnsServers: [INTERNET.dns],
        alwaysDeniedCidrs: CONFIGURED,
        pool: { low: 1, high: 2 },
        hostAddresses: () => [INTERNET.hostPublic],
        device: () => GUEST_DEVICE,
      }),
    );
    stack.use(
      await createFakeInternet({
        exec,
        path: join(runtimeDir, 'internet'),
        behind: gatewayNamespacePath({ runtimeDir, prefix: PREFIX }),
      }),
    );
    guest = stack.use(await guestWith());
  });
  afterAll(() => stack.disposeAsync());

  async function guestWith(policy: Partial<NetworkPolicy> = {}): Promise<SlotGuest> {
    const slot = await slots.acquire({ ...DEFAULT_NETWORK_POLICY, ...policy });
    return enterSlot({ exec, slot, path: join(runtimeDir, 'guests', String(slot.index)) });
  }

  function inSlot(slot: NetworkSlot, argv: readonly string[], stdin?: string): Promise<string> {
    const command: [string, ...string[]] = ['nsenter', `--net=${slot.networkNamespacePath}`, ...argv];
    return exec({ argv: command, deadlineMs: 10_000, ...(stdin === undefined ? {} : { stdin }) });
  }

  test('100 random policies decide about TCP, UDP and names as the model does', async () => {
    const verdicts = { accept: 0, reject: 0 };
    // A port used twice within the lifetime of a flow would be an open connection, which every policy lets go on.
    let sourcePort = 1_024;
    await fc.assert(
      fc.asyncProperty(anyPolicy, async (random) => {
        const policy: NetworkPolicy = { ...DEFAULT_NETWORK_POLICY, ...random };
        await guest.slot.applyPolicy(policy);
        const model = egressPolicy(policy, ALWAYS_DENIED);
        const probes = TARGETS.map(async (target) => {
          const address = parseAddress(target);
          if (address === undefined) throw new Error(`not an address: ${target}`);
          const { verdict } = decideEgress(model, { kind: 'address', address });
          const [tcp, udp] = await Promise.all([
            guest.tcp(target, 7),
            guest.udp(target, 7, { sourcePort: sourcePort++ }),
          ]);
          verdicts[verdict]++;
          const accepted = verdict === 'accept';
          expect({ target, verdict, outcome: tcp.outcome }).toMatchObject({
            outcome: accepted ? 'connected' : expect.stringMatching(REFUSAL),
          });
          expect({ target, verdict, outcome: udp.outcome }).toMatchObject({
            outcome: accepted ? 'answered' : expect.stringMatching(REFUSAL),
          });
        });
        const names = await guest.ask({ op: 'dns-udp', host: GUEST_ADDRESSING.gatewayIpv4, sourcePort: sourcePort++ });
        expect(names.outcome === 'answered').toBe(decideEgress(model, { kind: 'resolver' }).verdict === 'accept');
        await Promise.all(probes);
      }),
      { numRuns: 100 },
    );
    expect(Math.min(verdicts.accept, verdicts.reject)).toBeGreaterThan(50);
  });

  test('nothing of a closed host gets through while policies that all close it alternate', async () => {
    const closing = [
      { denyOut: [INTERNET.other] },
      { denyOut: ['0.0.0.0/0'], allowOut: [INTERNET.web] },
      { allowInternetAccess: false },
    ].map((policy) => ({ ...DEFAULT_NETWORK_POLICY, ...policy }));
    await guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, denyOut: [INTERNET.other] });
    let updating = true;
    const updates = (async () => {
      for (let round = 0; round < 10; round++) for (const policy of closing) await guest.slot.applyPolicy(policy);
      updating = false;
    })();
    const outcomes = new Set<string>();
    while (updating) {
      const attempts = Array.from({ length: 8 }, () => guest.tcp(INTERNET.other, 7));
      for (const { outcome } of await Promise.all(attempts)) outcomes.add(outcome);
    }
    await updates;
    for (const outcome of outcomes) expect(outcome).toMatch(REFUSAL);
  });

  test('updates that are asked for together end with the last one', async () => {
    const asked = Array.from({ length: 6 }, (_, index) =>
      guest.slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, denyOut: [index === 5 ? INTERNET.other : INTERNET.web] }),
    );
    await Promise.all(asked);
    expect(await guest.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
    expect((await guest.tcp(INTERNET.other)).outcome).toMatch(REFUSAL);
  });

  test("an operator's table and interface in the namespace work, survive updates and go with the slot", async () => {
    const path = join(runtimeDir, 'service');
    await using _namespace = await createTestNamespace(exec, path, []);
    const used = await guestWith();
    const { slot } = used;
    const service = '192.0.2.200';
    let server: NamespaceProgram | undefined;
    try {
      await inSlot(slot, ['ip', 'link', 'add', 'vpn0', 'type', 'veth', 'peer', 'name', 'vpn1', 'netns', path]);
      await inSlot(
        slot,
        ['ip', '-batch', '-'],
        `addr add 192.0.2.129/32 dev vpn0\nlink set vpn0 up\nroute add ${service}/32 dev vpn0\n`,
      );
      await ipInNamespace(exec, path, [
        `addr add ${service}/32 dev vpn1`,
        'link set vpn1 up',
        'route add 192.0.2.129/32 dev vpn1',
        `route add ${slot.hostInteractionIp}/32 dev vpn1`,
      ]);
      await inSlot(
        slot,
        ['nft', '-f', '-'],
        `table inet operator { chain seen { type filter hook forward priority -10; policy accept;
         ip daddr ${INTERNET.other} counter reject with icmpx admin-prohibited
}
}\n`,
      );
      server = await startNamespaceProgram(path, './internet-server.ts', [service]);
      const reach = async () => {
        const argv = ['busybox', 'ping', '-c', '1', '-W', '2', '-I', slot.hostInteractionIp, service];
        return (await inSlot(slot, argv)).includes('1 packets received');
      };
      expect(await reach()).toBe(true);
      expect((await used.tcp(INTERNET.other)).outcome).toMatch(REFUSAL);
      await slot.applyPolicy({ ...DEFAULT_NETWORK_POLICY, denyOut: [INTERNET.web] });
      await slot.applyPolicy(DEFAULT_NETWORK_POLICY);
      expect(await reach()).toBe(true);
      expect(await inSlot(slot, ['nft', 'list', 'tables'])).toContain('table inet operator');
      expect((await used.tcp(INTERNET.other)).outcome).toMatch(REFUSAL);
      expect(await used.tcp(INTERNET.web)).toMatchObject({ outcome: 'connected' });
    } finally {
      await server?.[Symbol.asyncDispose]();
      await used[Symbol.asyncDispose]();
    }
    await using next = await guestWith();
    expect(await inSlot(next.slot, ['nft', 'list', 'tables'])).toBe('table inet aenv\n');
    expect(await inSlot(next.slot, ['ip', '-brief', 'link'])).not.toContain('vpn0');
    expect(await next.tcp(INTERNET.other)).toMatchObject({ outcome: 'connected' });
  });
});
