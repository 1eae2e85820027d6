import type { IncomingHttpHeaders } from 'node:http';
import type { GuestEntry } from '@agentenv/agent';

/** What identifies one content of a file (RFC 9110 section 8.8). */
export interface Validators {
  /** Strong: changes with size, time of change or inode. */
  readonly etag: string;
  /** Whole seconds, as `Last-Modified` has them, since the epoch. */
  readonly modifiedS: number;
}

export function validatorsOf(entry: GuestEntry): Validators {
  return {
    etag: `"${entry.inode.toString(16)}-${entry.size.toString(16)}-${entry.mtimeNs.toString(16)}"`,
    modifiedS: Number(entry.mtimeNs / 1_000_000_000n),
  };
}

/** Whether a request asks for more than the whole file whatever it is. */
export function isConditional(headers: IncomingHttpHeaders): boolean {
  return (
    headers.range !== undefined ||
    headers['if-match'] !== undefined ||
    headers['if-none-match'] !== undefined ||
    headers['if-modified-since'] !== undefined ||
    headers['if-unmodified-since'] !== undefined
  );
}

export type Condition =
  | { readonly kind: 'whole' }
  /** Inclusive offsets. */
  | { readonly kind: 'part'; readonly first: bigint; readonly last: bigint }
  | { readonly kind: 'not modified' }
  | { readonly kind: 'precondition failed' }
  | { readonly kind: 'unsatisfiable' };

/** Evaluates the conditions of a request in the order of RFC 9110 section 13.2.2, then its range. */
export function evaluateConditions(headers: IncomingHttpHeaders, size: bigint, validators: Validators): Condition {
  const { etag, modifiedS } = validators;
  const ifMatch = headers['if-match'];
  const ifUnmodifiedSince = seconds(headers['if-unmodified-since']);
  if (ifMatch !== undefined) {
    if (!matches(ifMatch, etag, 'strong')) return { kind: 'precondition failed' };
  } else if (ifUnmodifiedSince !== undefined && modifiedS > ifUnmodifiedSince) {
    return { kind: 'precondition failed' };
  }

  const ifNoneMatch = headers['if-none-match'];
  const ifModifiedSince = seconds(headers['if-modified-since']);
  if (ifNoneMatch !== undefined) {
    if (matches(ifNoneMatch, etag, 'weak')) return { kind: 'not modified' };
  } else if (ifModifiedSince !== undefined && modifiedS <= ifModifiedSince) {
    return { kind: 'not modified' };
  }

  // A file of procfs claims to be empty; only reading it tells.
  if (headers.range === undefined || size === 0n || !rangeApplies(headers['if-range'], validators))
    return { kind: 'whole' };
  return parseRange(headers.range, size);
}

/** `If-Range` lets the range count only while the file is the one the client has. */
function rangeApplies(ifRange: string | string[] | undefined, { etag, modifiedS }: Validators): boolean {
  if (ifRange === undefined) return true;
  if (typeof ifRange !== 'string') return false;
  return ifRange.includes('"') ? ifRange.trim() === etag : seconds(ifRange) === modifiedS;
}

/** One range of bytes; several, or what is no range, mean the whole file, which RFC 9110 section 14.2 allows. */
function parseRange(header: string, size: bigint): Condition {
  const [, first = '', last = ''] = /^\s*bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*$/i.exec(header) ?? [];
  if (first === '' && last === '') return { kind: 'whole' };
  if (first === '') {
    const length = BigInt(last);
    if (length === 0n) return { kind: 'unsatisfiable' };
    return { kind: 'part', first: length >= size ? 0n : size - length, last: size - 1n };
  }
  const from = BigInt(first);
  const to = last === '' ? size - 1n : BigInt(last);
  if (last !== '' && to < from) return { kind: 'whole' };
  if (from >= size) return { kind: 'unsatisfiable' };
  return { kind: 'part', first: from, last: to < size ? to : size - 1n };
}

function matches(list: string, etag: string, comparison: 'strong' | 'weak'): boolean {
  return list.split(',').some((item) => {
    const tag = item.trim();
    return tag === '*' || (comparison === 'weak' ? tag.replace(/^W\//, '') : tag) === etag;
  });
}

function seconds(date: string | undefined): number | undefined {
  const milliseconds = date === undefined ? Number.NaN : Date.parse(date);
  return Number.isNaN(milliseconds) ? undefined : Math.floor(milliseconds / 1000);
}
