import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import {
  type Cidr,
  type Clock,
  DEFAULT_NETWORK_POLICY,
  egressPolicy,
  type Log,
  NEVER_INTERNET,
  type NetworkPolicy,
  PlatformError,
  parseRules,
} from '@agentenv/core';
import type { Exec } from '../exec.ts';
import { createAddressPlan, DEFAULT_INTERNAL_NETWORKS, GUEST_ADDRESSING, type InternalNetworks } from './addressing.ts';
import { createGateway, type Gateway } from './gateway.ts';
import { createNamespaces, type Namespaces, tapDevice } from './namespaces.ts';
import { policyTransaction, TAP } from './ruleset.ts';
import type { NetworkSlot, NetworkSlots } from './slot.ts';

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

/** A slot's namespace, ready or in use; the default policy is in force. */
interface Prepared {
  readonly index: number;
  readonly path: string;
  readonly uid: number;
}

const MAINTENANCE_MS = 30_000;
const MAX_CREATING = 3;

/**
 * Cleans what a former server with this prefix left, builds the gateway, and fills the pool in the background.
 * Throws `invalid_argument` for a bad address configuration. Disposing ends every slot, also those in use.
 */
export async function createNetworkSlots(options: NetworkSlotsOptions): Promise<NetworkSlots> {
  const { runtimeDir, prefix, exec, clock, log, pool, uidBase } = options;
  const plan = createAddressPlan(options.addressing ?? DEFAULT_INTERNAL_NETWORKS);
  const alwaysDenied: readonly Cidr[] = [
    ...parseRules(options.alwaysDeniedCidrs, 'network.egress.always_denied_cidrs'),
    ...parseRules(NEVER_INTERNET, 'built-in'),
    ...plan.internal,
  ];
  const namespaces = createNamespaces({ directory: join(runtimeDir, 'netns'), prefix, exec });
  const gateway = await createGateway({
    ...options,
    namespaces,
    hostAddresses: options.hostAddresses ?? interfaceAddresses,
  });
  return new SlotPool({
    namespaces,
    gateway,
    clock,
    log,
    pool,
    maxSlots: plan.maxSlots,
    async prepare(index) {
      const uid = uidBase + index;
      const path = namespaces.path(`slot-${index}`);
      const addresses = plan.slot(index);
      const device = options.device?.({ index, uid }) ?? tapDevice(uid);
      const rules = policyTransaction(egressPolicy(DEFAULT_NETWORK_POLICY, alwaysDenied), addresses);
      await namespaces.createSlot({ index, path, uid, addresses, device, rules });
      return { index, path, uid };
    },
    async applyPolicy({ index, path }, policy, signal) {
      const transaction = policyTransaction(egressPolicy(policy, alwaysDenied), plan.slot(index));
      try {
        await namespaces.nft(path, transaction, signal);
      } catch (error) {
        signal?.throwIfAborted();
        throw new PlatformError('internal', 'the network policy could not be applied', { cause: error });
      }
    },
    hostInteractionIp: (index) => plan.slot(index).hostInteractionIp,
  });
}

function interfaceAddresses(): readonly string[] {
  return Object.values(networkInterfaces()).flatMap((entries) => (entries ?? []).map(({ address }) => address));
}

interface SlotPoolDeps {
  readonly namespaces: Namespaces;
  readonly gateway: Gateway;
  readonly clock: Clock;
  readonly log: Log;
  readonly pool: { readonly low: number; readonly high: number };
  readonly maxSlots: number;
  readonly prepare: (index: number) => Promise<Prepared>;
  readonly applyPolicy: (slot: Prepared, policy: NetworkPolicy, signal?: AbortSignal) => Promise<void>;
  readonly hostInteractionIp: (index: number) => string;
}

class SlotPool implements NetworkSlots {
  readonly #deps: SlotPoolDeps;
  readonly #ready: Prepared[] = [];
  readonly #inUse = new Map<number, Prepared>();
  readonly #waiting: PromiseWithResolvers<Prepared>[] = [];
  readonly #work = new Set<Promise<void>>();
  /** Numbers given back, oldest first: a number rests as long as possible before it is used again. */
  readonly #free: number[] = [];
  #highest = 0;
  #creating = 0;
  #filling = true;
  #disposed: Promise<void> | undefined;
  #maintenance: Disposable;

  constructor(deps: SlotPoolDeps) {
    this.#deps = deps;
    this.#maintenance = this.#schedule();
    this.#pump();
  }

  status(): { readonly ready: number; readonly inUse: number } {
    return { ready: this.#ready.length, inUse: this.#inUse.size };
  }

  async acquire(policy: NetworkPolicy, signal?: AbortSignal): Promise<NetworkSlot> {
    signal?.throwIfAborted();
    const slot = await this.#take(signal);
    try {
      signal?.throwIfAborted();
      if (needsTransaction(policy)) await this.#deps.applyPolicy(slot, policy, signal);
    } catch (error) {
      await this.#giveBack(slot);
      throw PlatformError.fromUnknown(error, 'the network slot could not be taken');
    }
    return this.#handle(slot);
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#disposed ??= this.#shutDown();
    return this.#disposed;
  }

  #handle(slot: Prepared): NetworkSlot {
    let released: Promise<void> | undefined;
    return {
      index: slot.index,
      networkNamespacePath: slot.path,
      hostInteractionIp: this.#deps.hostInteractionIp(slot.index),
      tap: TAP,
      uid: slot.uid,
      guest: GUEST_ADDRESSING,
      applyPolicy: async (policy) => {
        if (released !== undefined) throw new PlatformError('conflict', `slot ${slot.index} was released`);
        await this.#deps.applyPolicy(slot, policy);
      },
      release: () => {
        released ??= this.#giveBack(slot);
        return released;
      },
    };
  }

  async #take(signal: AbortSignal | undefined): Promise<Prepared> {
    if (this.#disposed !== undefined) throw new PlatformError('unavailable', 'the network is shut down');
    const ready = this.#ready.shift();
    if (ready !== undefined) {
      this.#inUse.set(ready.index, ready);
      this.#pump();
      return ready;
    }
    const waiter = Promise.withResolvers<Prepared>();
    const onAbort = () => {
      const position = this.#waiting.indexOf(waiter);
      if (position === -1) return;
      this.#waiting.splice(position, 1);
      waiter.reject(signal?.reason);
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#waiting.push(waiter);
    this.#pump();
    try {
      return await waiter.promise;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** A used namespace is never handed out again: with it go its rules, its connections and whatever the guest left. */
  async #giveBack(slot: Prepared): Promise<void> {
    if (!this.#inUse.has(slot.index)) return;
    await this.#destroy(slot);
    this.#inUse.delete(slot.index);
    this.#free.push(slot.index);
    this.#pump();
  }

  async #destroy(slot: Pick<Prepared, 'index' | 'path'>): Promise<void> {
    await this.#deps.namespaces.deleteSlot(slot);
  }

  /** Starts as many creations as waiters and the watermark ask for. */
  #pump(): void {
    if (this.#disposed !== undefined) return;
    const { low, high } = this.#deps.pool;
    if (this.#ready.length + this.#creating < low) this.#filling = true;
    if (this.#ready.length >= high) this.#filling = false;
    const wanted = this.#waiting.length + (this.#filling ? high - this.#ready.length : 0);
    while (this.#creating < Math.min(wanted, MAX_CREATING)) {
      const index = this.#nextIndex();
      if (index === undefined) {
        this.#refuse();
        return;
      }
      this.#creating++;
      const work = this.#create(index).finally(() => {
        this.#work.delete(work);
        this.#pump();
      });
      this.#work.add(work);
    }
  }

  async #create(index: number): Promise<void> {
    try {
      const slot = await this.#deps.prepare(index);
      this.#creating--;
      const waiter = this.#waiting.shift();
      if (waiter === undefined) this.#ready.push(slot);
      else {
        this.#inUse.set(index, slot);
        waiter.resolve(slot);
      }
    } catch (error) {
      this.#creating--;
      // Tried again by the next maintenance or acquire, not in a loop.
      this.#filling = false;
      this.#deps.log.error({ slot: index, error }, 'a network slot could not be created');
      const path = this.#deps.namespaces.path(`slot-${index}`);
      await this.#destroy({ index, path }).then(
        () => this.#free.push(index),
        (cause: unknown) => this.#deps.log.error({ slot: index, error: cause }, 'a network slot could not be removed'),
      );
      this.#waiting
        .shift()
        ?.reject(new PlatformError('create_failed', 'no network slot could be created', { cause: error }));
    }
  }

  #nextIndex(): number | undefined {
    // Numbers never used yet come first.
    if (this.#highest < this.#deps.maxSlots) return ++this.#highest;
    return this.#free.shift();
  }

  #refuse(): void {
    const limit = this.#deps.maxSlots;
    for (const waiter of this.#waiting.splice(0)) {
      waiter.reject(new PlatformError('capacity', `all ${limit} network slots are in use`, { retryAfterSeconds: 5 }));
    }
  }

  #schedule(): Disposable {
    return this.#deps.clock.timer(MAINTENANCE_MS, () => {
      if (this.#disposed !== undefined) return;
      this.#filling = this.#ready.length < this.#deps.pool.high;
      this.#pump();
      const work = this.#deps.gateway
        .refresh()
        .catch((error: unknown) => this.#deps.log.warn({ error }, 'the network gateway could not be refreshed'))
        .finally(() => {
          this.#work.delete(work);
        });
      this.#work.add(work);
      this.#maintenance = this.#schedule();
    });
  }

  async #shutDown(): Promise<void> {
    this.#maintenance[Symbol.dispose]();
    for (const waiter of this.#waiting.splice(0)) {
      waiter.reject(new PlatformError('unavailable', 'the network is shut down'));
    }
    await Promise.all(this.#work);
    const slots = [...this.#ready.splice(0), ...this.#inUse.values()];
    this.#inUse.clear();
    await Promise.all(slots.map((slot) => this.#destroy(slot)));
    await this.#deps.gateway[Symbol.asyncDispose]();
  }
}

/** The default is in every fresh slot already. */
function needsTransaction({ allowInternetAccess, allowOut, denyOut }: NetworkPolicy): boolean {
  return allowInternetAccess === false || allowOut.length > 0 || denyOut.length > 0;
}
