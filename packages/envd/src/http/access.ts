import { createHash, timingSafeEqual } from 'node:crypto';

/** Compares two strings in a time that depends on neither, by comparing digests of equal length. */
export function constantTimeEqual(left: string, right: string): boolean {
  return timingSafeEqual(sha256(left), sha256(right));
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text, 'utf8').digest();
}
