/** How a request changes the deadline of a running sandbox (agentenv.md section 7). */
export type DeadlinePolicy =
  /** Replace: may shorten and may extend. `POST timeout`, resume. */
  | 'set'
  /** Only raise. Connect on a running sandbox, refreshes. */
  | 'ensure-minimum';

/** A refresh extends by at least this, seconds (e2b.md 6.3). */
export const MINIMUM_REFRESH_SECONDS = 15;

/** `endAt` of a sandbox that has no deadline yet: the epoch plus 100 years of 365.25 days, milliseconds (agentenv.md 4.5). */
export const NO_DEADLINE_END_AT = 3_155_760_000_000;

/** When a sandbox that gets `seconds` from `now` on ends; both and the result in milliseconds except `seconds`. */
export function deadlineAfter(now: number, seconds: number): number {
  return now + seconds * 1000;
}

/** The deadline after a request for `seconds` from `now` on. */
export function applyDeadlinePolicy(
  policy: DeadlinePolicy,
  current: number | undefined,
  now: number,
  seconds: number,
): number {
  const asked = deadlineAfter(now, seconds);
  if (policy === 'set' || current === undefined) return asked;
  return Math.max(current, asked);
}
