/** `object` with some of its methods replaced. */
export function override<T extends object>(object: T, changes: Partial<T>): T {
  return new Proxy(object, {
    get: (target, key) => Reflect.get(key in changes ? changes : target, key),
  });
}
