import { type Cidr, contains, type IpAddress, PlatformError, parseAddress, parseCidr } from '@agentenv/core';

/** Whether what the other end of a connection says about the client is believed (`sandbox_proxy.trusted_proxies`). */
export type PeerTrust = (address: string | undefined) => boolean;

/** Throws `invalid_argument` for a range that is none. */
export function createPeerTrust(ranges: readonly string[]): PeerTrust {
  const trusted = ranges.map((range): Cidr => {
    const cidr = parseCidr(range);
    if (cidr === undefined) throw new PlatformError('invalid_argument', `'${range}' is no IP address or CIDR`);
    return cidr;
  });
  return (text) => {
    const address = text === undefined ? undefined : parsePeer(text);
    return address !== undefined && trusted.some((range) => contains(range, address));
  };
}

/** A socket that listens for both families has IPv4 peers as `::ffff:1.2.3.4`, and link-local ones with a zone. */
function parsePeer(text: string): IpAddress | undefined {
  return parseAddress(plainAddress(text).replace(/%.*$/, ''));
}

/** The address as people write it. */
export function plainAddress(text: string): string {
  return text.replace(/^::ffff:(?=\d+\.)/i, '');
}
