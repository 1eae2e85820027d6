import { addressAt, type Cidr, formatAddress, formatCidr, overlaps, PlatformError, parseCidr } from '@agentenv/core';
import type { GuestAddressing } from './slot.ts';

/** What every guest sees, whatever slot it runs in (contract agentenv.md section 13, in-guest link 169.254.0.20/30). */
export const GUEST_ADDRESSING: GuestAddressing = {
  mac: '02:ae:00:00:00:02',
  ipv4: '169.254.0.22/30',
  ipv6: 'fd00:ae::2/64',
  gatewayIpv4: '169.254.0.21',
  gatewayIpv6: 'fd00:ae::1',
};

/** Hardware address of every slot's side of the tap: a clone's neighbour table stays true in any slot. */
export const GATEWAY_MAC = '02:ae:00:00:00:01';

/** The networks a server gives its slots; `network.internal.*` of the configuration. */
export interface InternalNetworks {
  /** IPv4 of the links between gateway and slots, two addresses per slot. */
  readonly vethCidr: string;
  /** The same for IPv6, unique local. */
  readonly vethCidr6: string;
  /** IPv4 of `hostInteractionIp`, one address per slot. */
  readonly hostInteractionCidr: string;
}

export const DEFAULT_INTERNAL_NETWORKS: InternalNetworks = {
  vethCidr: '10.12.0.0/16',
  vethCidr6: 'fd00:ae:1::/64',
  hostInteractionCidr: '10.11.0.0/16',
};

/** Addresses of one slot. */
export interface SlotAddresses {
  readonly gatewayIpv4: string;
  readonly slotIpv4: string;
  readonly gatewayIpv6: string;
  readonly slotIpv6: string;
  readonly hostInteractionIp: string;
}

export interface AddressPlan {
  /** Slots are numbered 1 … `maxSlots`. */
  readonly maxSlots: number;
  /** Every network of the platform's own, never reachable from a guest. */
  readonly internal: readonly Cidr[];
  slot(index: number): SlotAddresses;
}

const MIN_VETH_ADDRESSES = 65_536;
const MIN_HOST_ADDRESSES = 32_768;

/** Checks the internal networks and numbers the slots in them. Throws `invalid_argument` naming the key of a bad one. */
export function createAddressPlan(networks: InternalNetworks): AddressPlan {
  const veth = network('veth_cidr', networks.vethCidr, 4);
  const veth6 = network('veth_cidr6', networks.vethCidr6, 6);
  const host = network('host_interaction_cidr', networks.hostInteractionCidr, 4);
  const guest = network('guest link', GUEST_ADDRESSING.ipv4, 4);
  const guest6 = network('guest link', GUEST_ADDRESSING.ipv6, 6);
  requireSize('veth_cidr', veth, MIN_VETH_ADDRESSES);
  requireSize('veth_cidr6', veth6, MIN_VETH_ADDRESSES);
  requireSize('host_interaction_cidr', host, MIN_HOST_ADDRESSES);
  const internal = [veth, veth6, host, guest, guest6];
  for (const [position, left] of internal.entries()) {
    for (const right of internal.slice(position + 1)) {
      if (!overlaps(left, right)) continue;
      const pair = `${formatCidr(left)} and ${formatCidr(right)}`;
      throw new PlatformError('invalid_argument', `network.internal: ${pair} overlap`);
    }
  }
  return {
    maxSlots: Math.min(MIN_VETH_ADDRESSES / 2, MIN_HOST_ADDRESSES) - 1,
    internal,
    slot: (index) => ({
      gatewayIpv4: formatAddress(addressAt(veth, 2 * index)),
      slotIpv4: formatAddress(addressAt(veth, 2 * index + 1)),
      gatewayIpv6: formatAddress(addressAt(veth6, 2 * index)),
      slotIpv6: formatAddress(addressAt(veth6, 2 * index + 1)),
      hostInteractionIp: formatAddress(addressAt(host, index)),
    }),
  };
}

function network(key: string, text: string, family: 4 | 6): Cidr {
  const cidr = parseCidr(text);
  if (cidr?.family === family) return cidr;
  throw new PlatformError('invalid_argument', `network.internal.${key}: '${text}' is not an IPv${family} network`);
}

function requireSize(key: string, { family, prefix }: Cidr, addresses: number): void {
  if ((family === 4 ? 32 : 128) - prefix >= Math.log2(addresses)) return;
  throw new PlatformError('invalid_argument', `network.internal.${key} needs room for ${addresses} addresses`);
}
