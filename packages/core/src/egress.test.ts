import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { contains, formatCidr, parseAddress, parseCidr } from './cidr.ts';
import {
  canonicalRules,
  DEFAULT_ALWAYS_DENIED,
  decideEgress,
  egressPolicy,
  NEVER_INTERNET,
  parseRules,
} from './egress.ts';
import { PlatformError } from './errors.ts';
import { DEFAULT_NETWORK_POLICY, type NetworkPolicy } from './network-policy.ts';

const ALWAYS = parseRules([...DEFAULT_ALWAYS_DENIED, ...NEVER_INTERNET], 'always_denied_cidrs');

function decide(policy: Partial<NetworkPolicy>, destination: string) {
  const address = parseAddress(destination);
  if (address === undefined) throw new Error(`not an address: ${destination}`);
  return decideEgress(egressPolicy({ ...DEFAULT_NETWORK_POLICY, ...policy }, ALWAYS), { kind: 'address', address });
}

const v4 = fc.ipV4();
const anyRule = fc.tuple(v4, fc.integer({ min: 0, max: 32 })).map(([address, prefix]) => `${address}/${prefix}`);
const anyPolicy = fc.record({
  allowInternetAccess: fc.constantFrom(undefined, true, false),
  allowOut: fc.array(anyRule, { maxLength: 4 }),
  denyOut: fc.array(anyRule, { maxLength: 4 }),
});

describe('egress decisions', () => {
  test('the default lets everything on the internet through', () => {
    expect(decide({}, '203.0.113.1')).toEqual({ verdict: 'accept', rule: 'base' });
    expect(decide({}, '2600::1')).toEqual({ verdict: 'accept', rule: 'base' });
  });

  test('allowed beats denied, and an allow-list works with access off', () => {
    const policy = { allowInternetAccess: false, allowOut: ['203.0.113.1'], denyOut: ['203.0.113.0/24'] };
    expect(decide(policy, '203.0.113.1')).toEqual({ verdict: 'accept', rule: 'allow-out' });
    expect(decide(policy, '203.0.113.2')).toEqual({ verdict: 'reject', rule: 'deny-out' });
    expect(decide(policy, '198.51.100.1')).toEqual({ verdict: 'reject', rule: 'base' });
  });

  test.for([
    '10.1.2.3',
    '100.64.0.1',
    '127.0.0.1',
    '169.254.169.254',
    '172.31.0.1',
    '192.168.1.1',
    '::1',
    '::ffff:10.0.0.1',
    '64:ff9b::a00:1',
    '2002:a00:1::1',
    'fd12::1',
    'fe80::1',
    'ff02::1',
  ])('%s stays denied although everything is allowed', (destination) => {
    const policy = { allowInternetAccess: true, allowOut: ['0.0.0.0/0', '::/0', '10.0.0.0/8'] };
    expect(decide(policy, destination)).toEqual({ verdict: 'reject', rule: 'always-denied' });
  });

  test('off closes the resolver too, an allow-list keeps it', () => {
    const resolver = (policy: Partial<NetworkPolicy>) =>
      decideEgress(egressPolicy({ ...DEFAULT_NETWORK_POLICY, ...policy }, ALWAYS), { kind: 'resolver' }).verdict;
    expect(resolver({})).toBe('accept');
    expect(resolver({ allowInternetAccess: false })).toBe('reject');
    expect(resolver({ allowInternetAccess: false, allowOut: ['203.0.113.1'] })).toBe('accept');
    expect(resolver({ denyOut: ['0.0.0.0/0'] })).toBe('accept');
  });

  test('no policy reaches an always-denied address', () => {
    fc.assert(
      fc.property(anyPolicy, v4, (policy, destination) => {
        const address = parseAddress(destination);
        fc.pre(address !== undefined && ALWAYS.some((range) => contains(range, address)));
        expect(decide(policy, destination).verdict).toBe('reject');
      }),
    );
  });

  test('adding an allow rule never closes, adding a deny rule never opens', () => {
    fc.assert(
      fc.property(anyPolicy, anyRule, v4, (policy, rule, destination) => {
        const before = decide(policy, destination).verdict;
        const wider = decide({ ...policy, allowOut: [...policy.allowOut, rule] }, destination).verdict;
        const narrower = decide({ ...policy, denyOut: [...policy.denyOut, rule] }, destination).verdict;
        if (before === 'accept') expect(wider).toBe('accept');
        if (before === 'reject') expect(narrower).toBe('reject');
      }),
    );
  });
});

describe('rules', () => {
  test('become canonical, keep their order and lose duplicates', () => {
    expect(canonicalRules(['8.8.8.8', '10.1.2.3/8', '8.8.8.8/32', '2001:DB8::/32'], 'allowOut')).toEqual([
      '8.8.8.8/32',
      '10.0.0.0/8',
      '2001:db8::/32',
    ]);
  });

  test('a bad one is refused naming the field and the rule', () => {
    expect(() => canonicalRules(['1.1.1.1', 'example.com'], 'denyOut')).toThrow(
      new PlatformError('invalid_argument', "denyOut: 'example.com' is not an IP address or CIDR"),
    );
  });

  test('canonical texts are stable', () => {
    fc.assert(
      fc.property(anyRule, (rule) => {
        const [first = ''] = canonicalRules([rule], 'allowOut');
        expect(canonicalRules([first], 'allowOut')).toEqual([first]);
        const cidr = parseCidr(rule);
        expect(cidr && formatCidr(cidr)).toBe(first);
      }),
    );
  });
});
