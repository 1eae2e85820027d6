import { type Clock, type Log, type NetworkPolicy, PlatformError } from '@agentenv/core';
import { GUEST_ADDRESSING } from './addressing.ts';
import { TAP } from './ruleset.ts';
import type { NetworkSlot, NetworkSlots } from './slot.ts';

/** A slot's namespace, ready or in use; the default policy is in force. */
export interface Prepared {
  readonly index: number;
  readonly path: string;
  readonly uid: number;
}

const MAINTENANCE_MS = 30_000;
const MAX_CREATING = 3;

export interface SlotPoolDeps {
  readonly clock: Clock;
  readonly log: Log;
  readonly pool: { readonly low: number; readonly high: number };
  readonly maxSlots: number;
  /** Slots of a former server. */
  readonly left: readonly Prepared[];
  /** Makes slot `index`, with the default policy in force. */
  readonly prepare: (index: number) => Promise<Prepared>;
  /** Removes it with everything in it; also what a failed `prepare` left. */
  readonly destroy: (index: number) => Promise<void>;
  readonly applyPolicy: (slot: Prepared, policy: NetworkPolicy, signal?: AbortSignal) => Promise<void>;
  /** Puts all rules as this server has them in force, with that policy; open connections stay. */
  readonly renew: (slot: Prepared, policy: NetworkPolicy) => Promise<void>;
  readonly hostInteractionIp: (index: number) => string;
  /** Now and then, in the background. */
  readonly maintain: () => Promise<void>;
  /** After the last slot is gone, but for those of a former server that nobody adopted or removed. */
  readonly close: (left: readonly Prepared[]) => Promise<void>;
}

/**
 * Keeps namespaces ready between two watermarks and hands each out once. What is released is destroyed, never reused.
 */
export class SlotPool implements NetworkSlots {
  readonly #deps: SlotPoolDeps;
  readonly #ready: Prepared[] = [];
  readonly #inUse = new Map<number, Prepared>();
  /** Of a former server, neither adopted nor removed yet. */
  readonly #left: Map<number, Prepared>;
  readonly #waiting: PromiseWithResolvers<Prepared>[] = [];
  readonly #work = new Set<Promise<void>>();
  /** Numbers given back, oldest first: a number rests as long as possible before it is used again. */
  readonly #free: number[] = [];
  #highest = 0;
  /** Numbers that were taken when this pool began. */
  readonly #taken: ReadonlySet<number>;
  #creating = 0;
  #filling = true;
  /** A creation failed: only those who wait are served until the next maintenance. */
  #paused = false;
  #disposed: Promise<void> | undefined;
  #maintenance: Disposable;

  constructor(deps: SlotPoolDeps) {
    this.#deps = deps;
    this.#left = new Map(deps.left.map((slot) => [slot.index, slot]));
    this.#taken = new Set(this.#left.keys());
    this.#maintenance = this.#schedule();
    this.#pump();
  }

  status(): { readonly ready: number; readonly inUse: number } {
    return { ready: this.#ready.length, inUse: this.#inUse.size };
  }

  async acquire(policy: NetworkPolicy, signal?: AbortSignal): Promise<NetworkSlot> {
    signal?.throwIfAborted();
    const slot = await this.#take(signal);
    try {
      signal?.throwIfAborted();
      if (needsTransaction(policy)) await this.#deps.applyPolicy(slot, policy, signal);
    } catch (error) {
      await this.#giveBack(slot);
      throw PlatformError.fromUnknown(error, 'the network slot could not be taken');
    }
    return this.#handle(slot);
  }

  async adopt(index: number, policy: NetworkPolicy): Promise<NetworkSlot> {
    if (this.#disposed !== undefined) throw new PlatformError('unavailable', 'the network is shut down');
    const slot = this.#left.get(index);
    if (slot === undefined || index > this.#deps.maxSlots)
      throw new PlatformError('not_found', `network slot ${index} of the former server is not there`);
    await this.#deps.renew(slot, policy);
    this.#left.delete(index);
    this.#inUse.set(index, slot);
    return this.#handle(slot);
  }

  async removeLeftovers(): Promise<number> {
    const left = [...this.#left.keys()];
    this.#left.clear();
    await Promise.all(left.map((index) => this.#track(this.#discard(index))));
    this.#pump();
    return left.length;
  }

  abandon(): Promise<void> {
    this.#disposed ??= this.#end(() => [...this.#ready, ...this.#inUse.values(), ...this.#left.values()]);
    return this.#disposed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#disposed ??= this.#end(() => [...this.#left.values()]);
    return this.#disposed;
  }

  #handle(slot: Prepared): NetworkSlot {
    let released: Promise<void> | undefined;
    let last: Promise<void> = Promise.resolve();
    return {
      index: slot.index,
      networkNamespacePath: slot.path,
      hostInteractionIp: this.#deps.hostInteractionIp(slot.index),
      tap: TAP,
      uid: slot.uid,
      guest: GUEST_ADDRESSING,
      applyPolicy: (policy, signal) => {
        const turn = last.then(async () => {
          if (released !== undefined) throw new PlatformError('conflict', `slot ${slot.index} was released`);
          signal?.throwIfAborted();
          await this.#deps.applyPolicy(slot, policy, signal);
        });
        // The next one waits for the end of this one, whatever it was.
        last = turn.catch(() => {});
        return turn;
      },
      release: () => {
        released ??= this.#giveBack(slot).catch((error: unknown) => {
          // It may be tried again.
          released = undefined;
          throw PlatformError.fromUnknown(error, `network slot ${slot.index} could not be removed`);
        });
        return released;
      },
    };
  }

  async #take(signal: AbortSignal | undefined): Promise<Prepared> {
    if (this.#disposed !== undefined) throw new PlatformError('unavailable', 'the network is shut down');
    const ready = this.#ready.shift();
    if (ready !== undefined) {
      this.#inUse.set(ready.index, ready);
      this.#pump();
      return ready;
    }
    const waiter = Promise.withResolvers<Prepared>();
    const onAbort = () => {
      const position = this.#waiting.indexOf(waiter);
      if (position === -1) return;
      this.#waiting.splice(position, 1);
      waiter.reject(signal?.reason);
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#waiting.push(waiter);
    this.#pump();
    try {
      return await waiter.promise;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** A used namespace is never handed out again: with it go its rules, its connections and whatever the guest left. */
  #giveBack(slot: Prepared): Promise<void> {
    return this.#track(
      (async () => {
        if (!this.#inUse.has(slot.index)) return;
        await this.#deps.destroy(slot.index);
        this.#inUse.delete(slot.index);
        this.#free.push(slot.index);
        this.#pump();
      })(),
    );
  }

  /** Background work that a shut-down waits for. */
  #track(work: Promise<void>): Promise<void> {
    const settled = work
      .catch(() => {
        // Whoever started it handles the failure.
      })
      .finally(() => {
        this.#work.delete(settled);
      });
    this.#work.add(settled);
    return work;
  }

  /** Starts as many creations as waiters and the watermark ask for. */
  #pump(): void {
    if (this.#disposed !== undefined) return;
    const { low, high } = this.#deps.pool;
    if (this.#ready.length + this.#creating < low) this.#filling = true;
    if (this.#ready.length >= high) this.#filling = false;
    const refill = this.#filling && !this.#paused ? high - this.#ready.length : 0;
    const wanted = Math.min(this.#waiting.length + refill, MAX_CREATING);
    while (this.#creating < wanted) {
      const index = this.#nextIndex();
      if (index === undefined) {
        this.#refuse();
        return;
      }
      this.#creating++;
      void this.#track(this.#create(index));
    }
  }

  async #create(index: number): Promise<void> {
    try {
      const slot = await this.#deps.prepare(index);
      this.#paused = false;
      const waiter = this.#waiting.shift();
      if (waiter === undefined) this.#ready.push(slot);
      else {
        this.#inUse.set(index, slot);
        waiter.resolve(slot);
      }
    } catch (error) {
      this.#paused = true;
      this.#deps.log.error({ slot: index, error }, 'a network slot could not be created');
      await this.#discard(index);
      const failure = new PlatformError('create_failed', 'no network slot could be created', { cause: error });
      this.#waiting.shift()?.reject(failure);
    } finally {
      this.#creating--;
      this.#pump();
    }
  }

  async #discard(index: number): Promise<void> {
    try {
      await this.#deps.destroy(index);
      if (index <= this.#deps.maxSlots) this.#free.push(index);
    } catch (error) {
      // Its number is lost until the next start, which removes what is left of it.
      this.#deps.log.error({ slot: index, error }, 'a network slot could not be removed');
    }
  }

  #nextIndex(): number | undefined {
    // Numbers never used yet come first.
    while (this.#highest < this.#deps.maxSlots) if (!this.#taken.has(++this.#highest)) return this.#highest;
    return this.#free.shift();
  }

  #refuse(): void {
    const limit = this.#deps.maxSlots;
    for (const waiter of this.#waiting.splice(0)) {
      waiter.reject(new PlatformError('capacity', `all ${limit} network slots are in use`, { retryAfterSeconds: 5 }));
    }
  }

  #schedule(): Disposable {
    return this.#deps.clock.timer(MAINTENANCE_MS, () => {
      if (this.#disposed !== undefined) return;
      this.#paused = false;
      this.#filling = true;
      this.#pump();
      void this.#track(
        this.#deps.maintain().catch((error: unknown) => {
          this.#deps.log.warn({ error }, 'the network gateway could not be refreshed');
        }),
      );
      this.#maintenance = this.#schedule();
    });
  }

  /** Asked when nothing is under way any more, `leave` answers the slots that stay. */
  async #end(leave: () => readonly Prepared[]): Promise<void> {
    this.#maintenance[Symbol.dispose]();
    for (const waiter of this.#waiting.splice(0)) {
      waiter.reject(new PlatformError('unavailable', 'the network is shut down'));
    }
    await Promise.all(this.#work);
    const left = leave();
    const slots = [...this.#ready.splice(0), ...this.#inUse.values()].filter((slot) => !left.includes(slot));
    this.#inUse.clear();
    await Promise.all(slots.map(({ index }) => this.#deps.destroy(index)));
    await this.#deps.close(left);
  }
}

/** The default is in every fresh slot already. */
function needsTransaction({ allowInternetAccess, allowOut, denyOut }: NetworkPolicy): boolean {
  return allowInternetAccess === false || allowOut.length > 0 || denyOut.length > 0;
}
