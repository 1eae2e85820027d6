/** Wall and monotonic time plus timers; every part that waits takes one, so tests never sleep. */
export interface Clock {
  /** Wall time in milliseconds since the Unix epoch. */
  now(): number;
  /** Monotonic time in milliseconds. */
  monotonic(): number;
  /** Calls `callback` once after `milliseconds`; disposing cancels it. Never keeps the process alive. */
  timer(milliseconds: number, callback: () => void): Disposable;
}
