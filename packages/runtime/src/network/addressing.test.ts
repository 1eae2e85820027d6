import { contains, parseAddress } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { createAddressPlan, DEFAULT_INTERNAL_NETWORKS } from './addressing.ts';

describe('the address plan', () => {
  const plan = createAddressPlan(DEFAULT_INTERNAL_NETWORKS);

  test('gives every slot addresses of its own, inside the internal networks', () => {
    const seen = new Set<string>();
    for (const index of [1, 2, 3, 127, 128, 129, 5_000, plan.maxSlots]) {
      const addresses = Object.values(plan.slot(index));
      for (const text of addresses) {
        const address = parseAddress(text);
        expect(address !== undefined && plan.internal.some((network) => contains(network, address))).toBe(true);
        expect(seen.has(text)).toBe(false);
        seen.add(text);
      }
    }
  });

  test('pairs the two ends of a link', () => {
    expect(plan.slot(1)).toEqual({
      gatewayIpv4: '10.12.0.2',
      slotIpv4: '10.12.0.3',
      gatewayIpv6: 'fd00:ae:1::2',
      slotIpv6: 'fd00:ae:1::3',
      hostInteractionIp: '10.11.0.1',
    });
  });

  test.for([
    ['veth_cidr', { vethCidr: '10.12.0.0/17' }],
    ['veth_cidr', { vethCidr: 'fd00::/64' }],
    ['veth_cidr6', { vethCidr6: '10.0.0.0/8' }],
    ['host_interaction_cidr', { hostInteractionCidr: '10.11.0.0/18' }],
    ['host_interaction_cidr', { hostInteractionCidr: 'nonsense' }],
    ['overlap', { hostInteractionCidr: '10.12.128.0/17' }],
    ['overlap', { hostInteractionCidr: '169.254.0.0/16' }],
    ['overlap', { vethCidr6: 'fd00:ae::/48' }],
  ] as const)('refuses a bad network at start, naming %s: %j', ([word, change]) => {
    expect(() => createAddressPlan({ ...DEFAULT_INTERNAL_NETWORKS, ...change })).toThrow(
      expect.objectContaining({ code: 'invalid_argument', message: expect.stringContaining(word) }),
    );
  });
});
