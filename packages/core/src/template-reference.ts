import { PlatformError } from './errors.ts';
import { isUuid } from './ids.ts';
import { shorten } from './text.ts';

/** A template name as a client wrote it, taken apart: `[namespace/]alias[:tag]`. */
export interface TemplateReference {
  readonly namespace: string | undefined;
  /** Alias or id. */
  readonly alias: string;
  readonly tag: string | undefined;
}

/** The tag that a reference without one means. */
export const DEFAULT_TAG = 'default';
/** Longest full name, characters (e2b.md section 3). */
export const TEMPLATE_NAME_MAX = 128;

const IDENTIFIER = /^[a-z0-9_-]+$/;
const TAG = /^[a-z0-9_.-]+$/;

/**
 * Parses a reference after trimming and lower-casing it (e2b.md section 3). Malformed: `invalid_argument`, which calls it
 * `what`.
 */
export function parseTemplateReference(text: string, what = 'template reference'): TemplateReference {
  const malformed = (why: string): PlatformError =>
    new PlatformError('invalid_argument', `invalid ${what} '${shorten(text, TEMPLATE_NAME_MAX)}': ${why}`);
  const normal = text.trim().toLowerCase();
  if (normal === '') throw malformed('it is empty');
  if (normal.length > TEMPLATE_NAME_MAX) throw malformed(`longer than ${TEMPLATE_NAME_MAX} characters`);
  const slash = normal.indexOf('/');
  const namespace = slash === -1 ? undefined : normal.slice(0, slash);
  const rest = normal.slice(slash + 1);
  const colon = rest.indexOf(':');
  const alias = colon === -1 ? rest : rest.slice(0, colon);
  const tag = colon === -1 ? undefined : rest.slice(colon + 1);
  if (namespace !== undefined && !IDENTIFIER.test(namespace)) {
    throw malformed('the namespace may hold only a-z, 0-9, - and _');
  }
  if (!IDENTIFIER.test(alias)) throw malformed('the name may hold only a-z, 0-9, - and _');
  if (tag !== undefined && !TAG.test(tag)) throw malformed('the tag may hold only a-z, 0-9, -, _ and .');
  if (tag !== undefined && isUuid(tag)) throw malformed('the tag may not be a UUID');
  return { namespace, alias, tag };
}
