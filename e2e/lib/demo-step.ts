/** Longest wait for anything the demo expects of its sandbox, milliseconds. */
export const PATIENCE = 60_000;

/** Prints one line per step: its time in milliseconds, its name and what came out of it. */
export async function step<T>(name: string, run: () => Promise<T>, show: (value: T) => string = () => ''): Promise<T> {
  const start = performance.now();
  const value = await run();
  const milliseconds = (performance.now() - start).toFixed(0).padStart(7);
  console.log(`${milliseconds} ms  ${name.padEnd(34)} ${show(value)}`.trimEnd());
  return value;
}

/** Throws unless something is as it must be. */
export function expectThat(condition: boolean, what: string): void {
  if (!condition) throw new Error(what);
}

/** Where the server is and how to get in. */
export interface DemoServer {
  readonly apiKey: string;
  readonly apiUrl: string;
  readonly sandboxUrl: string;
}
