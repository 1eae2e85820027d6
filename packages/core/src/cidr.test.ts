import { BlockList, isIP, SocketAddress } from 'node:net';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  addressAt,
  type Cidr,
  contains,
  formatAddress,
  formatCidr,
  type IpAddress,
  overlaps,
  parseAddress,
  parseCidr,
} from './cidr.ts';

const anyAddress = fc.oneof(
  fc.bigInt({ min: 0n, max: 2n ** 32n - 1n }).map((value): IpAddress => ({ family: 4, value })),
  fc.bigInt({ min: 0n, max: 2n ** 128n - 1n }).map((value): IpAddress => ({ family: 6, value })),
  // Sparse addresses, where `::` matters.
  fc
    .array(fc.constantFrom(0n, 0n, 0n, 1n, 0xabcdn), { minLength: 8, maxLength: 8 })
    .map(
      (groups): IpAddress => ({ family: 6, value: groups.reduce<bigint>((all, group) => (all << 16n) | group, 0n) }),
    ),
);

const anyCidr = fc
  .tuple(anyAddress, fc.nat(128))
  .map(([address, prefix]) => parseCidr(`${formatAddress(address)}/${address.family === 4 ? prefix % 33 : prefix}`))
  .filter((cidr): cidr is Cidr => cidr !== undefined);

describe('addresses', () => {
  test('text and value convert both ways', () => {
    fc.assert(
      fc.property(anyAddress, (address) => {
        expect(parseAddress(formatAddress(address))).toEqual(address);
      }),
    );
  });

  test('the text is what the platform writes', () => {
    fc.assert(
      fc.property(anyAddress, (address) => {
        const text = formatAddress(address);
        const mappedToIpv4 = address.family === 6 && address.value >> 32n === 0xffffn;
        const compatible = address.family === 6 && address.value >> 32n === 0n;
        // The platform writes these two with an embedded IPv4 address.
        fc.pre(!mappedToIpv4 && !compatible);
        const family = address.family === 4 ? 'ipv4' : 'ipv6';
        expect(new SocketAddress({ address: text, family }).address).toBe(text);
      }),
    );
  });

  test('accepts exactly what the platform accepts', () => {
    const noise = fc.string({
      unit: fc.constantFrom('0', '1', '25', '255', '256', '.', ':', '::', 'f', 'g', 'FFFF', '01', ' '),
      maxLength: 12,
    });
    fc.assert(
      fc.property(noise, (text) => {
        expect(parseAddress(text) !== undefined).toBe(isIP(text) !== 0);
      }),
      { numRuns: 2_000 },
    );
  });

  test.for(['', '1.2.3', '1.2.3.4.5', '01.2.3.4', '1.2.3.256', '0x7f.1', '::1%lo', ':::', '1::2::3', '1:2:3:4:5:6:7'])(
    'refuses %j',
    (text) => expect(parseAddress(text)).toBeUndefined(),
  );

  test('reads an embedded IPv4 address', () => {
    expect(parseAddress('::ffff:1.2.3.4')).toEqual({ family: 6, value: 0xffff_0102_0304n });
    expect(parseAddress('::1.2.3.4:1')).toBeUndefined();
  });
});

describe('ranges', () => {
  test('a bare address is a range of one, host bits are cleared', () => {
    const canonical = (text: string) => {
      const cidr = parseCidr(text);
      return cidr && formatCidr(cidr);
    };
    expect(canonical('8.8.8.8')).toBe('8.8.8.8/32');
    expect(canonical('2001:DB8::1')).toBe('2001:db8::1/128');
    expect(canonical('10.1.2.3/8')).toBe('10.0.0.0/8');
    expect(canonical('0.0.0.0/0')).toBe('0.0.0.0/0');
    expect(canonical('2001:db8:ffff::/33')).toBe('2001:db8:8000::/33');
  });

  test.for(['1.2.3.4/33', '1.2.3.4/', '1.2.3.4/-1', '1.2.3.4/08', '::/129', 'example.com', '1.2.3.4/8/8', '/8'])(
    'refuses %j',
    (text) => expect(parseCidr(text)).toBeUndefined(),
  );

  test('membership agrees with the platform', () => {
    fc.assert(
      fc.property(anyCidr, anyAddress, (cidr, address) => {
        fc.pre(cidr.family === address.family);
        // The platform treats IPv4-mapped addresses as IPv4.
        fc.pre(address.family === 4 || address.value >> 32n !== 0xffffn);
        const family = cidr.family === 4 ? 'ipv4' : 'ipv6';
        const list = new BlockList();
        list.addSubnet(formatAddress(cidr), cidr.prefix, family);
        expect(contains(cidr, address)).toBe(list.check(formatAddress(address), family));
      }),
    );
  });

  test('a range contains its own addresses and overlaps whatever contains one of them', () => {
    fc.assert(
      fc.property(anyCidr, anyCidr, (left, right) => {
        expect(contains(left, left)).toBe(true);
        expect(overlaps(left, right)).toBe(overlaps(right, left));
        expect(overlaps(left, right)).toBe(contains(left, right) || contains(right, left));
      }),
    );
  });

  test('numbers its addresses and has no more than it has', () => {
    const cidr = parseCidr('10.12.0.0/30');
    if (cidr === undefined) throw new Error('unreachable');
    expect(formatAddress(addressAt(cidr, 3))).toBe('10.12.0.3');
    expect(() => addressAt(cidr, 4)).toThrow(RangeError);
    expect(() => addressAt(cidr, -1)).toThrow(RangeError);
  });
});
