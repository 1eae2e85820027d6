import { constants } from 'node:fs';
import type { CheckResult } from './check.ts';

/** Package installation drops root and fails far from the cause when only root may write to `/dev/null`. */
export function checkNullDevice(found: { readonly mode: number }): CheckResult {
  const name = '/dev/null';
  const mode = found.mode & 0o777;
  if ((found.mode & constants.S_IFMT) !== constants.S_IFCHR) {
    const remedy = 'rm /dev/null && mknod -m 666 /dev/null c 1 3, as root';
    return { name, state: 'missing', detail: 'is no device', remedy };
  }
  if ((mode & 0o006) === 0o006) return { name, state: 'ok', detail: 'open to everyone' };
  const detail = `mode ${mode.toString(8)}: programs that are not root cannot use it`;
  return { name, state: 'missing', detail, remedy: 'chmod 666 /dev/null, as root' };
}
