import { posix } from 'node:path';
import { PlatformError } from '@agentenv/core';

/** Linux' PATH_MAX without the end mark, bytes. */
const MAX_PATH_BYTES = 4095;

export interface PathContext {
  /** Home of the request's user. */
  readonly home: string;
  readonly defaultWorkdir: string | undefined;
}

/**
 * The absolute guest path a client means (contract e2b.md section 8.2): empty is the default workdir, `~` and what is
 * relative belong to the user's home, an absolute path stays as it is.
 */
export function resolveGuestPath(path: string, { home, defaultWorkdir }: PathContext): string {
  return checkGuestPath(resolve(path, home, defaultWorkdir ?? home));
}

function resolve(path: string, home: string, workdir: string): string {
  if (path === '') return workdir;
  if (path === '~') return home;
  if (path.startsWith('~/')) return posix.join(home, path.slice(2));
  if (path.startsWith('~')) {
    throw new PlatformError('invalid_argument', `path '${path}': the home of another user is not supported`);
  }
  return posix.isAbsolute(path) ? path : posix.join(home, path);
}

/** Refuses what no path of the guest can be. */
export function checkGuestPath(path: string): string {
  if (!path.isWellFormed()) throw new PlatformError('invalid_argument', 'path contains half a character');
  if (path.includes('\0')) throw new PlatformError('invalid_argument', 'path contains a NUL byte');
  if (Buffer.byteLength(path, 'utf8') > MAX_PATH_BYTES) {
    throw new PlatformError('invalid_argument', `path is longer than ${MAX_PATH_BYTES} bytes`);
  }
  return path;
}
