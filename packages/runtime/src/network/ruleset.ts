import { type Cidr, contains, type EgressPolicy, formatCidr } from '@agentenv/core';
import { GUEST_ADDRESSING, type SlotAddresses } from './addressing.ts';
import { PASTA_LINK } from './uplink.ts';

/** Interface names: fixed inside their namespaces. */
export const TAP = 'tap0';
export const UPLINK_OF_SLOT = 'up0';
export const SLOT_LINK_PREFIX = 'slot';

const GUEST4 = hostPart(GUEST_ADDRESSING.ipv4);
const GUEST6 = hostPart(GUEST_ADDRESSING.ipv6);
/** What a neighbour needs; router messages stay out, there is nothing to discover. */
const NEIGHBOUR = 'icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert }';

function hostPart(cidr: string): string {
  return cidr.slice(0, cidr.indexOf('/'));
}

/**
 * The rules of a fresh slot: source addresses are the guest's own, new connections start at the guest, everything that
 * passes `egress` leaves under the slot's address. `policyTransaction` fills the empty chains. The limit of open
 * connections keeps one sandbox from filling the gateway's connection table, which all of them share.
 */
export function slotRuleset(addresses: SlotAddresses, maxConnections: number): string {
  return `
table inet aenv {
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain spoof {
    type filter hook prerouting priority raw; policy accept;
    iifname != "${TAP}" accept
    ip saddr != ${GUEST4} drop
    meta nfproto ipv6 ${NEIGHBOUR} ip6 saddr { ::, ${GUEST6}, fe80::/10 } accept
    ip6 saddr != ${GUEST6} drop
  }
  chain resolver {}
  chain to_resolver {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "${TAP}" jump resolver
  }
  chain local {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname "lo" accept
    ${NEIGHBOUR} accept
    iifname "${TAP}" goto refuse
  }
  chain egress {}
  chain pass {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    ct state invalid drop
    ct state new ct count over ${maxConnections} goto refuse
    iifname "${TAP}" oifname "${UPLINK_OF_SLOT}" jump egress
    iifname "${TAP}" goto refuse
  }
  chain leave {
    type nat hook postrouting priority srcnat; policy accept;
    oifname "${UPLINK_OF_SLOT}" meta nfproto ipv4 snat ip to ${addresses.slotIpv4}
    oifname "${UPLINK_OF_SLOT}" meta nfproto ipv6 snat ip6 to ${addresses.slotIpv6}
  }
}
`;
}

/** One transaction that replaces the policy of a slot: all of it or, on any error, nothing. */
export function policyTransaction(policy: EgressPolicy, addresses: SlotAddresses): string {
  const lines = ['flush chain inet aenv resolver', 'flush chain inet aenv egress'];
  const egress = (rule: string) => lines.push(`add rule inet aenv egress ${rule}`);
  if (policy.dns) {
    for (const protocol of ['udp', 'tcp']) {
      const match = `ip daddr ${GUEST_ADDRESSING.gatewayIpv4} ${protocol} dport 53`;
      lines.push(`add rule inet aenv resolver ${match} dnat ip to ${addresses.gatewayIpv4}`);
    }
    // The chain above is the only one that translates destinations.
    egress('ct status dnat accept');
  }
  for (const match of matchRanges(policy.alwaysDenied)) egress(`${match} goto refuse`);
  for (const match of matchRanges(policy.allowOut)) egress(`${match} accept`);
  for (const match of matchRanges(policy.denyOut)) egress(`${match} goto refuse`);
  egress(policy.base === 'accept' ? 'accept' : 'goto refuse');
  return `${lines.join('\n')}\n`;
}

/**
 * One transaction that puts the rules of a fresh slot and this policy in the place of those of a former server, perhaps of
 * another version or configuration. Connections stay; those open already do not count to the limit.
 */
export function renewalTransaction(policy: EgressPolicy, addresses: SlotAddresses, maxConnections: number): string {
  return `delete table inet aenv\n${slotRuleset(addresses, maxConnections)}${policyTransaction(policy, addresses)}`;
}

/**
 * The rules of the gateway: slots reach the outside and never each other, the host's addresses or the gateway itself;
 * whatever is not a slot's link is an uplink and hides the slots behind its own address. `mend`: pasta up to 2023 answers
 * a refused connection with a reset that lacks ACK, which clients must ignore; with it they fail at once.
 */
export function gatewayRuleset(): string {
  const slots = `"${SLOT_LINK_PREFIX}*"`;
  return `
table inet aenv {
  set host4 { type ipv4_addr; }
  set host6 { type ipv6_addr; }
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain mend {
    type filter hook prerouting priority raw; policy accept;
    iifname "${PASTA_LINK}" tcp flags & (syn | rst | ack) == rst tcp flags set rst | ack
  }
  chain resolver {}
  chain to_resolver {
    type nat hook prerouting priority dstnat; policy accept;
    iifname ${slots} fib daddr type local jump resolver
  }
  chain local {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname "lo" accept
    ${NEIGHBOUR} accept
    iifname ${slots} goto refuse
  }
  chain pass {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    ct state invalid drop
    iifname != ${slots} drop
    oifname ${slots} goto refuse
    ct status dnat accept
    ip daddr @host4 goto refuse
    ip6 daddr @host6 goto refuse
    accept
  }
  chain leave {
    type nat hook postrouting priority srcnat; policy accept;
    oifname != ${slots} masquerade
  }
}
`;
}

/** Names the address port 53 of the gateway is forwarded to, per protocol; a protocol that is left out is refused. */
export function resolverTransaction(resolver: { readonly udp?: string; readonly tcp?: string }): string {
  const lines = ['flush chain inet aenv resolver'];
  for (const [protocol, address] of Object.entries(resolver)) {
    lines.push(`add rule inet aenv resolver meta nfproto ipv4 ${protocol} dport 53 dnat ip to ${address}`);
  }
  return `${lines.join('\n')}\n`;
}

/** Replaces the addresses of the host that no sandbox may reach. */
export function hostAddressesTransaction(ipv4: readonly string[], ipv6: readonly string[]): string {
  const lines = ['flush set inet aenv host4', 'flush set inet aenv host6'];
  if (ipv4.length > 0) lines.push(`add element inet aenv host4 { ${ipv4.join(', ')} }`);
  if (ipv6.length > 0) lines.push(`add element inet aenv host6 { ${ipv6.join(', ')} }`);
  return `${lines.join('\n')}\n`;
}

/** Matches for a list of ranges, at most one per family; none for an empty list. */
function matchRanges(ranges: readonly Cidr[]): readonly string[] {
  const matches: string[] = [];
  for (const { family, keyword } of [
    { family: 4, keyword: 'ip' },
    { family: 6, keyword: 'ip6' },
  ]) {
    const widest = withoutContained(ranges.filter((range) => range.family === family));
    if (widest.length === 0) continue;
    const everything = widest.some(({ prefix }) => prefix === 0);
    matches.push(
      everything ? `meta nfproto ipv${family}` : `${keyword} daddr { ${widest.map(formatCidr).join(', ')} }`,
    );
  }
  return matches;
}

/** An interval set refuses overlaps; of nested ranges the outer one says it all. */
function withoutContained(ranges: readonly Cidr[]): readonly Cidr[] {
  const widest: Cidr[] = [];
  for (const range of ranges.toSorted((left, right) => left.prefix - right.prefix)) {
    if (!widest.some((outer) => contains(outer, range))) widest.push(range);
  }
  return widest;
}
