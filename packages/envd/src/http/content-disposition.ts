import { basename } from 'node:path/posix';

/** `inline` with the file's name, in RFC 5987 form as well when it is not plain ASCII (contract e2b.md section 8.3). */
export function contentDisposition(path: string): string {
  const name = basename(path);
  const fallback = name.replaceAll(/[^\x20-\x7e]/g, '_').replaceAll(/["\\]/g, '\\$&');
  const header = `inline; filename="${fallback}"`;
  return /^[\x20-\x7e]*$/.test(name) ? header : `${header}; filename*=UTF-8''${encodeExtended(name)}`;
}

/** Percent-encodes everything but the `attr-char` of RFC 5987. */
function encodeExtended(name: string): string {
  return encodeURIComponent(name.toWellFormed()).replaceAll(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}
