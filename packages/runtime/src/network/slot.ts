import type { NetworkPolicy } from '@agentenv/core';

/** Addresses every guest sees; identical in every sandbox so that snapshots and clones need no renumbering (design §7). */
export interface GuestAddressing {
  readonly mac: string;
  /** With prefix length, e.g. `169.254.0.22/30`. */
  readonly ipv4: string;
  readonly ipv6: string;
  readonly gatewayIpv4: string;
  readonly gatewayIpv6: string;
}

/**
 * An outer network namespace owned by the host: policy, NAT, the tap the engine attaches to.
 * `networkNamespacePath` and `hostInteractionIp` are what hooks will receive.
 */
export interface NetworkSlot {
  readonly index: number;
  readonly networkNamespacePath: string;
  /** Address inside the slot's namespace that host-side services of an operator can use. */
  readonly hostInteractionIp: string;
  /**
   * Name of the persistent tap device inside the namespace, owned by `uid`. `/dev/net/tun` is root's alone, so the engine
   * does not open it: the launcher attaches while it is still root (`aenv-launch --tap FD=NAME`) and hands the descriptor over.
   */
  readonly tap: string;
  /** Unprivileged uid and gid that own the tap and run the engine of this slot; unique per slot. */
  readonly uid: number;
  readonly guest: GuestAddressing;
  /** One nft transaction; the old rules stay on failure. In the order of the calls. */
  applyPolicy(policy: NetworkPolicy, signal?: AbortSignal): Promise<void>;
  /** Flushes user rules and conntrack state and gives the slot back to the pool; once only. */
  release(): Promise<void>;
}

/** Pool of network slots. Namespaces and tables carry the prefix of this server's runtime directory, so two servers never touch each other's. */
export interface NetworkSlots extends AsyncDisposable {
  acquire(policy: NetworkPolicy, signal?: AbortSignal): Promise<NetworkSlot>;
  /** The slot of a former server whose engine goes on, with this server's rules and that policy in force; `not_found` when it is not there. */
  adopt(index: number, policy: NetworkPolicy): Promise<NetworkSlot>;
  /** Removes the slots of a former server that were not adopted; answers how many. Until then they are left alone. */
  removeLeftovers(): Promise<number>;
  /** Ends as disposing does, except that every slot and the way out of it stay for the next server. */
  abandon(): Promise<void>;
  status(): { readonly ready: number; readonly inUse: number };
}
