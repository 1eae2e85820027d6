/** An IP address as a number of its family. */
export interface IpAddress {
  readonly family: 4 | 6;
  readonly value: bigint;
}

/** A range of addresses: the network's first address and the prefix length. Host bits are zero. */
export interface Cidr extends IpAddress {
  readonly prefix: number;
}

const BITS = { 4: 32, 6: 128 } as const;

/** Parses an IPv4 address in four plain decimals or an IPv6 address (RFC 4291 text, no zone); undefined when it is neither. */
export function parseAddress(text: string): IpAddress | undefined {
  if (text.includes(':')) {
    const value = parseIpv6(text);
    return value === undefined ? undefined : { family: 6, value };
  }
  const value = parseIpv4(text);
  return value === undefined ? undefined : { family: 4, value };
}

/** Parses an address or `address/prefix`; a bare address is a range of one, host bits are cleared. */
export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf('/');
  const address = parseAddress(slash === -1 ? text : text.slice(0, slash));
  if (address === undefined) return undefined;
  const bits = BITS[address.family];
  if (slash === -1) return { ...address, prefix: bits };
  const digits = text.slice(slash + 1);
  if (!/^(?:0|[1-9]\d{0,2})$/.test(digits) || Number(digits) > bits) return undefined;
  const prefix = Number(digits);
  const hostBits = BigInt(bits - prefix);
  return { family: address.family, value: (address.value >> hostBits) << hostBits, prefix };
}

/** Canonical text: dotted decimals, or RFC 5952 for IPv6. */
export function formatAddress({ family, value }: IpAddress): string {
  return family === 4 ? formatIpv4(value) : formatIpv6(value);
}

/** Canonical text, always with the prefix length. */
export function formatCidr(cidr: Cidr): string {
  return `${formatAddress(cidr)}/${cidr.prefix}`;
}

export function contains(cidr: Cidr, address: IpAddress): boolean {
  if (cidr.family !== address.family) return false;
  const hostBits = BigInt(BITS[cidr.family] - cidr.prefix);
  return address.value >> hostBits === cidr.value >> hostBits;
}

export function overlaps(left: Cidr, right: Cidr): boolean {
  return left.prefix <= right.prefix ? contains(left, right) : contains(right, left);
}

/** The address `offset` places after the first of a range; throws when the range has no such address. */
export function addressAt(cidr: Cidr, offset: number): IpAddress {
  const value = cidr.value + BigInt(offset);
  if (offset < 0 || !contains(cidr, { family: cidr.family, value })) {
    throw new RangeError(`${formatCidr(cidr)} has no address number ${offset}`);
  }
  return { family: cidr.family, value };
}

function parseIpv4(text: string): bigint | undefined {
  const parts = text.split('.');
  if (parts.length !== 4) return undefined;
  let value = 0n;
  for (const part of parts) {
    if (!/^(?:0|[1-9]\d{0,2})$/.test(part) || Number(part) > 255) return undefined;
    value = (value << 8n) | BigInt(part);
  }
  return value;
}

function parseIpv6(text: string): bigint | undefined {
  const halves = text.split('::');
  if (halves.length > 2) return undefined;
  const [head = '', tail] = halves;
  const left = parseGroups(head, tail === undefined);
  const right = tail === undefined ? [] : parseGroups(tail, true);
  if (left === undefined || right === undefined) return undefined;
  const missing = 8 - left.length - right.length;
  // `::` stands for at least one group.
  if (tail === undefined ? missing !== 0 : missing < 1) return undefined;
  let value = 0n;
  for (const group of [...left, ...Array<number>(missing).fill(0), ...right]) value = (value << 16n) | BigInt(group);
  return value;
}

/** 16-bit groups of one side of `::`; the last one may be an IPv4 address. */
function parseGroups(text: string, mayEndInIpv4: boolean): number[] | undefined {
  if (text === '') return [];
  const groups: number[] = [];
  const parts = text.split(':');
  for (const [index, part] of parts.entries()) {
    if (part.includes('.')) {
      const embedded = mayEndInIpv4 && index === parts.length - 1 ? parseIpv4(part) : undefined;
      if (embedded === undefined) return undefined;
      groups.push(Number(embedded >> 16n), Number(embedded & 0xffffn));
    } else {
      if (!/^[0-9a-fA-F]{1,4}$/.test(part)) return undefined;
      groups.push(Number.parseInt(part, 16));
    }
  }
  return groups;
}

function formatIpv4(value: bigint): string {
  return [24n, 16n, 8n, 0n].map((shift) => (value >> shift) & 0xffn).join('.');
}

/** RFC 5952: lower case, no leading zeros, the first longest run of two or more zero groups as `::`. */
function formatIpv6(value: bigint): string {
  const groups = Array.from({ length: 8 }, (_, index) => (value >> BigInt(112 - 16 * index)) & 0xffffn);
  let best = { start: 0, length: 1 };
  for (let start = 0; start < 8; start++) {
    let length = 0;
    while (start + length < 8 && groups[start + length] === 0n) length++;
    if (length > best.length) best = { start, length };
  }
  const hex = (part: readonly bigint[]) => part.map((group) => group.toString(16)).join(':');
  if (best.length < 2) return hex(groups);
  return `${hex(groups.slice(0, best.start))}::${hex(groups.slice(best.start + best.length))}`;
}
