import { timingSafeEqual } from 'node:crypto';

/** Whether a header has exactly this value; the time taken tells at most the length of the secret. */
export function equalsSecret(given: string | string[] | undefined, secret: string): boolean {
  if (typeof given !== 'string') return false;
  const left = Buffer.from(given);
  const right = Buffer.from(secret);
  return left.length === right.length && timingSafeEqual(left, right);
}
