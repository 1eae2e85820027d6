/** What a server calls outside of itself; it dies at one of these calls, and from then on nothing of it goes on. */
export interface Mortality {
  /** Resolves with the name of the call it died at. */
  readonly died: Promise<string>;
  /** From now on calls are counted; it dies at number `at`, before its effect or after it. */
  dieAt(at: number, when: 'before' | 'after'): void;
  /** It dies now, between two calls. */
  die(): void;
  /** One call: its outcome as long as the server lives, no outcome afterwards. */
  call<T>(name: string, apply: () => Promise<T>): Promise<T>;
  /** `target`, of which these methods are such calls. */
  bind<T extends object>(name: string, target: T, methods: readonly (keyof T & string)[]): T;
}

const never = () => new Promise<never>(() => {});

export function createMortality(): Mortality {
  const died = Promise.withResolvers<string>();
  let doom: { readonly at: number; readonly when: 'before' | 'after' } | undefined;
  let count = 0;
  let dead = false;

  function die(name: string): void {
    dead = true;
    died.resolve(name);
  }

  async function call<T>(name: string, apply: () => Promise<T>): Promise<T> {
    if (dead) return await never();
    const fatal = doom !== undefined && ++count === doom.at;
    if (fatal && doom?.when === 'before') {
      die(name);
      return await never();
    }
    const [outcome] = await Promise.allSettled([apply()]);
    if (fatal) die(name);
    if (dead) return await never();
    if (outcome.status === 'rejected') throw outcome.reason;
    return outcome.value;
  }

  return {
    died: died.promise,
    dieAt(at, when) {
      doom = { at, when };
      count = 0;
    },
    die: () => die('nothing'),
    call,
    bind(name, target, methods) {
      const bound = { ...target };
      for (const method of methods) {
        const original: unknown = target[method];
        if (typeof original !== 'function') throw new TypeError(`${name}.${method} is no method`);
        Object.assign(bound, {
          [method]: (...args: readonly unknown[]) =>
            call(`${name}.${method}`, async () => await Reflect.apply(original, target, args)),
        });
      }
      return bound;
    },
  };
}
