import { describe, expect, it } from 'vitest';
import { createPeerTrust, plainAddress } from './peer-trust.ts';

describe('trusted proxies', () => {
  const trusts = createPeerTrust(['10.0.0.0/8', '::1/128', '192.0.2.7']);

  it.each(['10.1.2.3', '::ffff:10.1.2.3', '::FFFF:192.0.2.7', '::1'])('include %s', (address) => {
    expect(trusts(address)).toBe(true);
  });

  it.each(['11.0.0.1', '::ffff:11.0.0.1', '192.0.2.8', '::2', 'fe80::1%eth0', 'nonsense', undefined])(
    'do not include %s',
    (address) => {
      expect(trusts(address)).toBe(false);
    },
  );

  it('are refused when they are no addresses', () => {
    expect(() => createPeerTrust(['example.com'])).toThrow(/no IP address or CIDR/);
  });

  it('are written as people write them', () => {
    expect(plainAddress('::ffff:1.2.3.4')).toBe('1.2.3.4');
    expect(plainAddress('2001:db8::1')).toBe('2001:db8::1');
  });
});
