import {
  contains,
  DEFAULT_ALWAYS_DENIED,
  DEFAULT_NETWORK_POLICY,
  decideEgress,
  type EgressPolicy,
  egressPolicy,
  type IpAddress,
  NEVER_INTERNET,
  parseAddress,
  parseCidr,
  parseRules,
} from '@agentenv/core';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createAddressPlan, DEFAULT_INTERNAL_NETWORKS, GUEST_ADDRESSING } from './addressing.ts';
import { hostAddressesTransaction, policyTransaction, resolverTransaction } from './ruleset.ts';

const PLAN = createAddressPlan(DEFAULT_INTERNAL_NETWORKS);
const ALWAYS = [...parseRules([...DEFAULT_ALWAYS_DENIED, ...NEVER_INTERNET], 'built-in'), ...PLAN.internal];

function rulesOf(transaction: string, chain: string): readonly string[] {
  const prefix = `add rule inet aenv ${chain} `;
  return transaction.split('\n').flatMap((line) => (line.startsWith(prefix) ? [line.slice(prefix.length)] : []));
}

/** What the kernel makes of the egress chain for a packet that no resolver rule translated. */
function evaluate(rules: readonly string[], address: IpAddress): 'accept' | 'reject' {
  for (const rule of rules) {
    const { match, verdict } = /^(?<match>.*?) ?(?<verdict>accept|goto refuse)$/.exec(rule)?.groups ?? {};
    if (match === undefined) throw new Error(`not a rule: ${rule}`);
    if (matches(match, address)) return verdict === 'accept' ? 'accept' : 'reject';
  }
  throw new Error('no rule decided');
}

function matches(match: string, address: IpAddress): boolean {
  if (match === '') return true;
  if (match === 'ct status dnat') return false;
  if (match.startsWith('meta nfproto ')) return match === `meta nfproto ipv${address.family}`;
  const { keyword, elements = '' } = /^(?<keyword>ip6?) daddr \{ (?<elements>.*) \}$/.exec(match)?.groups ?? {};
  if (keyword === undefined) throw new Error(`not a match: ${match}`);
  return elements.split(', ').some((text) => {
    const range = parseCidr(text);
    return range !== undefined && contains(range, address);
  });
}

/** Ranges close to each other, so that they nest, and addresses near them. */
const octets = fc.tuple(fc.constantFrom(10, 198, 203), fc.constantFrom(0, 51), fc.constantFrom(0, 100), fc.nat(3));
const anyV4 = octets.map((parts) => parts.join('.'));
const anyV6 = fc
  .tuple(fc.constantFrom('2001:db8', 'fd00', '2600'), fc.nat(3))
  .map(([head, tail]) => `${head}::${tail}`);
const anyRule = fc.oneof(
  fc.tuple(anyV4, fc.integer({ min: 0, max: 32 })).map(([address, prefix]) => `${address}/${prefix}`),
  fc.tuple(anyV6, fc.integer({ min: 0, max: 128 })).map(([address, prefix]) => `${address}/${prefix}`),
);
const anyPolicy = fc
  .record({
    allowInternetAccess: fc.constantFrom(undefined, true, false),
    allowOut: fc.array(anyRule, { maxLength: 6 }),
    denyOut: fc.array(anyRule, { maxLength: 6 }),
  })
  .map((policy): EgressPolicy => egressPolicy({ ...DEFAULT_NETWORK_POLICY, ...policy }, ALWAYS));

describe('the policy transaction', () => {
  test('decides every address as the model does', () => {
    fc.assert(
      fc.property(anyPolicy, fc.oneof(anyV4, anyV6), (policy, text) => {
        const address = parseAddress(text);
        if (address === undefined) throw new Error('unreachable');
        const rules = rulesOf(policyTransaction(policy, PLAN.slot(1)), 'egress');
        expect(evaluate(rules, address)).toBe(decideEgress(policy, { kind: 'address', address }).verdict);
      }),
      { numRuns: 2_000 },
    );
  });

  test('answers the resolver exactly when the model does', () => {
    fc.assert(
      fc.property(anyPolicy, (policy) => {
        const transaction = policyTransaction(policy, PLAN.slot(7));
        const open = decideEgress(policy, { kind: 'resolver' }).verdict === 'accept';
        expect(rulesOf(transaction, 'resolver')).toEqual(
          open
            ? ['udp', 'tcp'].map(
                (protocol) =>
                  `ip daddr ${GUEST_ADDRESSING.gatewayIpv4} ${protocol} dport 53 dnat ip to ${PLAN.slot(7).gatewayIpv4}`,
              )
            : [],
        );
        expect(rulesOf(transaction, 'egress').includes('ct status dnat accept')).toBe(open);
      }),
    );
  });

  test('never puts overlapping ranges into one set', () => {
    fc.assert(
      fc.property(anyPolicy, (policy) => {
        for (const rule of rulesOf(policyTransaction(policy, PLAN.slot(1)), 'egress')) {
          const elements = /\{ (.*) \}/.exec(rule)?.[1]?.split(', ') ?? [];
          const ranges = parseRules(elements, 'set');
          for (const [position, range] of ranges.entries()) {
            const others = ranges.filter((_, index) => index !== position);
            expect(others.some((other) => contains(other, range) && other.prefix <= range.prefix)).toBe(false);
          }
        }
      }),
    );
  });

  test('begins by emptying both chains, so that it replaces and never adds', () => {
    const transaction = policyTransaction(egressPolicy(DEFAULT_NETWORK_POLICY, ALWAYS), PLAN.slot(1));
    expect(transaction.split('\n').slice(0, 2)).toEqual([
      'flush chain inet aenv resolver',
      'flush chain inet aenv egress',
    ]);
  });
});

describe('the gateway transactions', () => {
  test('forward only the protocols that have a resolver', () => {
    expect(rulesOf(resolverTransaction({ udp: '192.0.2.1', tcp: '192.0.2.1' }), 'resolver')).toHaveLength(2);
    expect(rulesOf(resolverTransaction({ udp: '192.0.2.1' }), 'resolver')).toEqual([
      'meta nfproto ipv4 udp dport 53 dnat ip to 192.0.2.1',
    ]);
    expect(resolverTransaction({})).toBe('flush chain inet aenv resolver\n');
  });

  test('an empty family adds no empty set element', () => {
    expect(hostAddressesTransaction(['192.0.2.1', '192.0.2.2'], [])).toBe(
      'flush set inet aenv host4\nflush set inet aenv host6\nadd element inet aenv host4 { 192.0.2.1, 192.0.2.2 }\n',
    );
  });
});
