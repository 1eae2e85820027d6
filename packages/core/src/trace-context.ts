/** Where a request belongs in a distributed trace: the W3C `traceparent` header (Trace Context, section 3.2). */
export interface TraceContext {
  /** 32 lower-case hex digits, not all zero. */
  readonly traceId: string;
  /** The span of the caller: 16 lower-case hex digits, not all zero. */
  readonly parentId: string;
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const INVALID_VERSION = 'ff';
const FIRST_VERSION = '00';
/** Longest header that is looked at; later versions may append to the 55 characters of version 00. */
const MAX_LENGTH = 512;

/**
 * Reads a `traceparent` header. Undefined for everything the specification calls invalid, which is then ignored as if it
 * were not there: other characters, upper case, ids of zeros, version `ff`, or more than version 00 has in version 00.
 * Later versions are read by the fields version 00 has.
 */
export function parseTraceparent(header: string | undefined): TraceContext | undefined {
  if (header === undefined || header.length > MAX_LENGTH) return undefined;
  const match = TRACEPARENT.exec(header.trim());
  if (match === null) return undefined;
  const [, version = '', traceId = '', parentId = '', , rest] = match;
  if (version === INVALID_VERSION || (version === FIRST_VERSION && rest !== undefined)) return undefined;
  if (isZero(traceId) || isZero(parentId)) return undefined;
  return { traceId, parentId };
}

function isZero(id: string): boolean {
  return /^0+$/.test(id);
}
