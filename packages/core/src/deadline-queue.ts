import type { Clock } from './clock.ts';

/** Fires once per key when its wall-clock time comes; at most one timer is set however many keys there are. */
export interface DeadlineQueue extends Disposable {
  /** Replaces an earlier time of the same key. `at`: milliseconds since the epoch. */
  set(key: string, at: number): void;
  delete(key: string): void;
  readonly size: number;
}

interface HeapEntry {
  readonly key: string;
  readonly at: number;
}

/**
 * Creates a queue that calls `onDue` with every key whose time has come. Deadlines are wall-clock times and timers are
 * monotonic, so the clock is looked at again every `maxWaitMs`: a stepped wall clock shifts an expiry by no more than that.
 */
export function createDeadlineQueue(
  deps: { readonly clock: Clock; readonly maxWaitMs: number },
  onDue: (key: string) => void,
): DeadlineQueue {
  const { clock, maxWaitMs } = deps;
  /** The valid entry of each key; heap entries that are not in here any more are skipped when they surface. */
  const current = new Map<string, HeapEntry>();
  let heap: HeapEntry[] = [];
  let armed: { readonly timer: Disposable; readonly at: number } | undefined;
  let disposed = false;

  const before = (left: number, right: number): boolean =>
    (heap[left]?.at ?? Number.POSITIVE_INFINITY) < (heap[right]?.at ?? Number.POSITIVE_INFINITY);

  function swap(left: number, right: number): void {
    const first = heap[left];
    const second = heap[right];
    if (first === undefined || second === undefined) return;
    heap[left] = second;
    heap[right] = first;
  }

  function push(entry: HeapEntry): void {
    heap.push(entry);
    let at = heap.length - 1;
    while (at > 0) {
      const parent = (at - 1) >>> 1;
      if (!before(at, parent)) break;
      swap(at, parent);
      at = parent;
    }
  }

  function pop(): void {
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return;
    heap[0] = last;
    for (let at = 0; ; ) {
      const left = 2 * at + 1;
      const smaller = before(left + 1, left) ? left + 1 : left;
      if (!before(smaller, at)) break;
      swap(smaller, at);
      at = smaller;
    }
  }

  function dropStale(): void {
    for (let top = heap[0]; top !== undefined && current.get(top.key) !== top; top = heap[0]) pop();
    // Deadlines that are extended over and over leave stale entries deep in the heap.
    if (heap.length > 64 && heap.length > 4 * current.size) {
      heap = [];
      for (const entry of current.values()) push(entry);
    }
  }

  function arm(): void {
    dropStale();
    const top = heap[0];
    if (disposed || top === undefined) {
      armed?.timer[Symbol.dispose]();
      armed = undefined;
      return;
    }
    const wait = Math.min(maxWaitMs, Math.max(0, top.at - clock.now()));
    const at = clock.monotonic() + wait;
    if (armed !== undefined && armed.at <= at) return;
    armed?.timer[Symbol.dispose]();
    armed = { timer: clock.timer(wait, fire), at };
  }

  function fire(): void {
    armed = undefined;
    const due: string[] = [];
    for (dropStale(); heap[0] !== undefined && heap[0].at <= clock.now(); dropStale()) {
      due.push(heap[0].key);
      current.delete(heap[0].key);
      pop();
    }
    for (const key of due) onDue(key);
    arm();
  }

  return {
    set(key, at) {
      if (disposed) return;
      const entry = { key, at };
      current.set(key, entry);
      push(entry);
      arm();
    },
    delete(key) {
      current.delete(key);
      arm();
    },
    get size() {
      return current.size;
    },
    [Symbol.dispose]() {
      disposed = true;
      current.clear();
      heap = [];
      arm();
    },
  };
}
