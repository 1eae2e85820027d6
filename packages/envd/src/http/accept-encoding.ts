export interface EncodingChoice {
  /** gzip may be sent. */
  readonly gzip: boolean;
  /** The bytes may be sent as they are. */
  readonly identity: boolean;
}

/**
 * Reads an `Accept-Encoding` header (RFC 9110 section 12.5.3). Absent or empty: identity only, which every client
 * understands. An encoding with weight 0 is refused; `*` speaks for those that are not named.
 */
export function parseAcceptEncoding(header: string | undefined): EncodingChoice {
  const weights = new Map<string, number>();
  for (const item of (header ?? '').split(',')) {
    const [coding = '', ...parameters] = item.split(';').map((part) => part.trim().toLowerCase());
    if (coding === '') continue;
    weights.set(coding === 'x-gzip' ? 'gzip' : coding, weightOf(parameters));
  }
  const any = weights.get('*');
  return {
    gzip: (weights.get('gzip') ?? any ?? 0) > 0,
    identity: (weights.get('identity') ?? any ?? 1) > 0,
  };
}

function weightOf(parameters: readonly string[]): number {
  const weight = parameters.find((parameter) => parameter.startsWith('q='));
  if (weight === undefined) return 1;
  const value = Number(weight.slice(2));
  return Number.isFinite(value) ? value : 0;
}
