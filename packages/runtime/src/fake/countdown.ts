import type { Clock } from '@agentenv/core';

/** A one-shot timer that stands still while its guest does, as monotonic time does in a stopped machine. */
export class Countdown implements Disposable {
  readonly #clock: Clock;
  readonly #callback: () => void;
  #remaining: number;
  #startedAt = 0;
  #timer: Disposable | undefined;

  constructor(clock: Clock, milliseconds: number, callback: () => void) {
    this.#clock = clock;
    this.#remaining = milliseconds;
    this.#callback = callback;
  }

  /** Milliseconds still to run. */
  get remaining(): number {
    const elapsed = this.#timer === undefined ? 0 : this.#clock.monotonic() - this.#startedAt;
    return Math.max(0, this.#remaining - elapsed);
  }

  start(): void {
    if (this.#timer !== undefined || !Number.isFinite(this.#remaining)) return;
    this.#startedAt = this.#clock.monotonic();
    this.#timer = this.#clock.timer(this.#remaining, () => {
      this.#timer = undefined;
      this.#remaining = 0;
      this.#callback();
    });
  }

  pause(): void {
    if (this.#timer === undefined) return;
    this.#remaining = this.remaining;
    this.#timer[Symbol.dispose]();
    this.#timer = undefined;
  }

  [Symbol.dispose](): void {
    this.pause();
  }
}
