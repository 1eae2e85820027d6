import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import {
  type Cidr,
  type Clock,
  DEFAULT_NETWORK_POLICY,
  egressPolicy,
  type Log,
  NEVER_INTERNET,
  PlatformError,
  parseRules,
} from '@agentenv/core';
import type { Exec } from '../exec.ts';
import { createAddressPlan, DEFAULT_INTERNAL_NETWORKS, type InternalNetworks } from './addressing.ts';
import { createGateway } from './gateway.ts';
import { createNamespaces, SLOT, slotName, tapDevice } from './namespaces.ts';
import { policyTransaction, renewalTransaction } from './ruleset.ts';
import type { NetworkSlots } from './slot.ts';
import { SlotPool } from './slot-pool.ts';

const DEFAULT_MAX_CONNECTIONS = 16_384;

export interface NetworkSlotsOptions {
  /** This server's runtime directory; namespaces are files in `netns/` below it. */
  readonly runtimeDir: string;
  /** In front of every name; what carries it belongs to this server and is removed when a former one left it. */
  readonly prefix: string;
  readonly exec: Exec;
  readonly clock: Clock;
  readonly log: Log;
  /** `none`: somebody else puts an interface with a default route into the gateway. */
  readonly uplink: 'pasta' | 'none';
  /** Resolvers instead of the host's. */
  readonly dnsServers?: readonly string[];
  /** The host's resolv.conf files, in order; the usual ones unless given. */
  readonly resolverFiles?: readonly string[];
  /** `network.egress.always_denied_cidrs`, any mixture of IPv4 and IPv6. */
  readonly alwaysDeniedCidrs: readonly string[];
  /** The engine of slot N runs as uid and gid `uidBase + N`. */
  readonly uidBase: number;
  /** Refill up to `high` ready slots as soon as fewer than `low` are. */
  readonly pool: { readonly low: number; readonly high: number };
  readonly addressing?: InternalNetworks;
  /** Connections one sandbox may have open at once; 16384 unless given. */
  readonly maxConnections?: number;
  /** `ip -batch` lines that make the device `tap0` of a slot, run inside it; a tap for the slot's uid unless given. */
  readonly device?: (slot: { readonly index: number; readonly uid: number }) => readonly string[];
  /** Addresses of the host that no sandbox may reach; those of its interfaces unless given. */
  readonly hostAddresses?: () => readonly string[];
  /** Put in front of pasta's command, to run it in another namespace. */
  readonly uplinkWrapper?: readonly string[];
}

/** Where the namespace file of a server's gateway is. */
export function gatewayNamespacePath({ runtimeDir, prefix }: { runtimeDir: string; prefix: string }): string {
  return join(runtimeDir, 'netns', `${prefix}-gateway`);
}

/**
 * Builds the gateway or goes on with the one of a former server with this prefix, whose slots are left alone until they are
 * adopted or removed, and fills the pool in the background. Throws `invalid_argument` for a bad address configuration.
 * Disposing ends every slot, also those in use.
 */
export async function createNetworkSlots(options: NetworkSlotsOptions): Promise<NetworkSlots> {
  const { runtimeDir, prefix, exec, clock, log, pool, uidBase, maxConnections = DEFAULT_MAX_CONNECTIONS } = options;
  const plan = createAddressPlan(options.addressing ?? DEFAULT_INTERNAL_NETWORKS);
  const alwaysDenied: readonly Cidr[] = [
    ...parseRules(options.alwaysDeniedCidrs, 'network.egress.always_denied_cidrs'),
    ...parseRules(NEVER_INTERNET, 'built-in'),
    ...plan.internal,
  ];
  const namespaces = createNamespaces({ directory: join(runtimeDir, 'netns'), prefix, exec, clock });
  const slotPath = (index: number) => namespaces.path(slotName(index));
  const gateway = await createGateway({
    ...options,
    namespaces,
    hostAddresses: options.hostAddresses ?? interfaceAddresses,
  });
  const left = gateway.left.map(({ name, path }) => {
    const index = Number(SLOT.exec(name)?.[1]);
    return { index, path, uid: uidBase + index };
  });
  async function transact(path: string, transaction: string, signal?: AbortSignal): Promise<void> {
    try {
      await namespaces.nft(path, transaction, signal);
    } catch (error) {
      signal?.throwIfAborted();
      throw new PlatformError('internal', 'the network policy could not be applied', { cause: error });
    }
  }

  return new SlotPool({
    clock,
    log,
    pool,
    maxSlots: plan.maxSlots,
    left,
    async prepare(index) {
      const uid = uidBase + index;
      const path = slotPath(index);
      const addresses = plan.slot(index);
      const device = options.device?.({ index, uid }) ?? tapDevice(uid);
      const rules = policyTransaction(egressPolicy(DEFAULT_NETWORK_POLICY, alwaysDenied), addresses);
      await namespaces.createSlot({ index, path, uid, addresses, device, maxConnections, rules });
      return { index, path, uid };
    },
    async applyPolicy({ index, path }, policy, signal) {
      await transact(path, policyTransaction(egressPolicy(policy, alwaysDenied), plan.slot(index)), signal);
    },
    async renew({ index, path }, policy) {
      await transact(path, renewalTransaction(egressPolicy(policy, alwaysDenied), plan.slot(index), maxConnections));
    },
    destroy: (index) => namespaces.deleteSlot({ index, path: slotPath(index) }),
    hostInteractionIp: (index) => plan.slot(index).hostInteractionIp,
    maintain: () => gateway.refresh(),
    async close(abandoned) {
      await (abandoned.length > 0 ? gateway.abandon() : gateway[Symbol.asyncDispose]());
    },
  });
}

function interfaceAddresses(): readonly string[] {
  return Object.values(networkInterfaces()).flatMap((entries) => (entries ?? []).map(({ address }) => address));
}
