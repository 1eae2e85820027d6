import { type Cidr, contains, formatCidr, type IpAddress, parseCidr } from './cidr.ts';
import { PlatformError } from './errors.ts';
import type { NetworkPolicy } from './network-policy.ts';

/** Default of `network.egress.always_denied_cidrs` (contract agentenv.md section 13). */
export const DEFAULT_ALWAYS_DENIED: readonly string[] = [
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.168.0.0/16',
];

/**
 * Denied whatever the configuration says: ranges that are never a host on the internet, and for IPv6 the equivalents of
 * the private IPv4 ranges together with every prefix that embeds an IPv4 address, so that none leads around the list.
 */
export const NEVER_INTERNET: readonly string[] = [
  '0.0.0.0/8',
  '224.0.0.0/4',
  '240.0.0.0/4',
  // Unspecified, loopback and IPv4-compatible.
  '::/96',
  // IPv4-mapped and IPv4-translated.
  '::ffff:0:0/96',
  '::ffff:0:0:0/96',
  // NAT64, well known and local.
  '64:ff9b::/96',
  '64:ff9b:1::/48',
  // Teredo and 6to4.
  '2001::/32',
  '2002::/16',
  // Unique local, link-local, site-local, multicast.
  'fc00::/7',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
];

/** Which rule of the order decided. */
export type EgressRule = 'dns' | 'always-denied' | 'allow-out' | 'deny-out' | 'base';

export interface EgressDecision {
  readonly verdict: 'accept' | 'reject';
  readonly rule: EgressRule;
}

/** A policy with its rules parsed, in the form it is enforced and evaluated. */
export interface EgressPolicy {
  /** Whether the resolver at the slot's gateway answers. */
  readonly dns: boolean;
  readonly alwaysDenied: readonly Cidr[];
  readonly allowOut: readonly Cidr[];
  readonly denyOut: readonly Cidr[];
  readonly base: 'accept' | 'reject';
}

/** A new connection from the sandbox. `resolver`: it goes to port 53 of the slot's gateway. */
export type EgressTarget = { readonly kind: 'resolver' } | { readonly kind: 'address'; readonly address: IpAddress };

/** Parses a list of rules; throws `invalid_argument` naming the field and the entry. */
export function parseRules(rules: readonly string[], field: string): readonly Cidr[] {
  return rules.map((rule) => {
    const cidr = parseCidr(rule);
    if (cidr === undefined)
      throw new PlatformError('invalid_argument', `${field}: '${rule}' is not an IP address or CIDR`);
    return cidr;
  });
}

/** Canonical texts of a list of rules, duplicates removed, order kept. Throws as `parseRules` does. */
export function canonicalRules(rules: readonly string[], field: string): readonly string[] {
  return [...new Set(parseRules(rules, field).map(formatCidr))];
}

/**
 * Prepares a policy. Access that is off without an allow-list closes the resolver too; an allow-list keeps it, because
 * the programs it is written for look names up.
 */
export function egressPolicy(policy: NetworkPolicy, alwaysDenied: readonly Cidr[]): EgressPolicy {
  const off = policy.allowInternetAccess === false;
  return {
    dns: !(off && policy.allowOut.length === 0),
    alwaysDenied,
    allowOut: parseRules(policy.allowOut, 'allowOut'),
    denyOut: parseRules(policy.denyOut, 'denyOut'),
    base: off ? 'reject' : 'accept',
  };
}

/** The order of the contract, section 13: resolver, always denied, allowed, denied, base. First match decides. */
export function decideEgress(policy: EgressPolicy, target: EgressTarget): EgressDecision {
  if (target.kind === 'resolver') return { verdict: policy.dns ? 'accept' : 'reject', rule: 'dns' };
  const isIn = (ranges: readonly Cidr[]) => ranges.some((range) => contains(range, target.address));
  if (isIn(policy.alwaysDenied)) return { verdict: 'reject', rule: 'always-denied' };
  if (isIn(policy.allowOut)) return { verdict: 'accept', rule: 'allow-out' };
  if (isIn(policy.denyOut)) return { verdict: 'reject', rule: 'deny-out' };
  return { verdict: policy.base, rule: 'base' };
}
