/** Everything of one piece of work that has to succeed together: waits for all, then fails with the first failure. */
export async function all<T extends readonly unknown[]>(work: { [K in keyof T]: Promise<T[K]> }): Promise<T> {
  await Promise.allSettled(work);
  return (await Promise.all(work)) as unknown as T;
}
