import type { FileHandle } from 'node:fs/promises';

/** Which call fails, and what becomes of those after it. */
export interface Fault {
  /** Counted from 1. */
  readonly call: number;
  /** Whether it comes instead of the effect of the call, or after it. */
  readonly when: 'before' | 'after';
  readonly error: () => Error;
  /**
   * `one` call fails; `engine`: all calls of the engine from that one on, and only these count; `death`: nothing has any
   * effect after that call, as when the process was killed there.
   */
  readonly mode: 'one' | 'engine' | 'death';
}

type Call = (...args: readonly unknown[]) => Promise<unknown>;
type FileSystem = typeof import('node:fs/promises');

const HANDLE_CALLS = ['sync', 'stat', 'readFile', 'truncate', 'chown', 'chmod'];

/** Counts every call that leaves the process, and lets one of them fail. */
export interface Faults {
  arm(fault: Fault): void;
  /** How many calls there were since. */
  disarm(): number;
  /** Makes a call; `undo` takes back what a call that fails after its effect would have handed out. */
  around<T>(work: () => Promise<T>, of?: 'host' | 'engine', undo?: (result: T) => Promise<void>): Promise<T>;
  /** `node:fs/promises` with every call counted, but for those in `kept`. */
  fileSystem(real: FileSystem, kept?: readonly string[]): FileSystem;
}

export function createFaults(): Faults {
  let calls = 0;
  let fault: Fault | undefined;

  const around: Faults['around'] = async (work, of = 'host', undo) => {
    const current = fault;
    if (current === undefined || (current.mode === 'engine' && of === 'host')) return work();
    const mine = ++calls;
    const fails = current.mode === 'one' ? mine === current.call : mine >= current.call;
    const without = current.when === 'before' || (current.mode === 'death' && mine > current.call);
    if (fails && without) throw current.error();
    const result = await work();
    if (!fails) return result;
    await undo?.(result);
    throw current.error();
  };

  const guarded =
    (call: Call): Call =>
    (...args) =>
      around(() => call(...args));

  function guardedHandle(handle: FileHandle): FileHandle {
    return new Proxy(handle, {
      get(target, key) {
        const value: unknown = Reflect.get(target, key, target);
        if (typeof value !== 'function') return value;
        const call = value.bind(target);
        return HANDLE_CALLS.includes(String(key)) ? guarded(call) : call;
      },
    });
  }

  return {
    arm(armed) {
      calls = 0;
      fault = armed;
    },
    disarm() {
      fault = undefined;
      return calls;
    },
    around,
    fileSystem(real, kept = []) {
      const entries = Object.entries(real).map(([name, value]) => {
        const counted = typeof value === 'function' && ![...kept, 'open'].includes(name);
        return [name, counted ? guarded(value as Call) : value];
      });
      const open = async (...args: Parameters<FileSystem['open']>) =>
        guardedHandle(
          await around(
            () => real.open(...args),
            'host',
            (opened) => opened.close(),
          ),
        );
      return { ...Object.fromEntries(entries), open };
    },
  };
}
