/** The token of an `Authorization: Bearer` header; undefined for every other value. */
export function bearerToken(header: string | string[] | undefined): string | undefined {
  return typeof header === 'string' ? /^Bearer +(\S+)$/i.exec(header)?.[1] : undefined;
}
