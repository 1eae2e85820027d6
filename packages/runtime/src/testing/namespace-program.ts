import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

/** A test program in another network namespace that answers one JSON line for each JSON line it is sent. */
export interface NamespaceProgram extends AsyncDisposable {
  request<Answer>(request: Readonly<Record<string, unknown>>): Promise<Answer>;
}

const START_DEADLINE_MS = 20_000;

/** Starts `script` (a module beside this one) inside the namespace at `path`; resolves when it says `ready`. */
export async function startNamespaceProgram(
  path: string,
  script: string,
  args: readonly string[] = [],
): Promise<NamespaceProgram> {
  const file = new URL(script, import.meta.url).pathname;
  const argv = [`--net=${path}`, process.execPath, '--disable-warning=ExperimentalWarning', file, ...args];
  const child = spawn('nsenter', argv, { stdio: ['pipe', 'pipe', 'inherit'] });
  const pending = new Map<number, PromiseWithResolvers<unknown>>();
  const ready = Promise.withResolvers<void>();
  let last = 0;

  createInterface({ input: child.stdout }).on('line', (line) => {
    const { id, answer }: { id: number; answer: unknown } = JSON.parse(line);
    if (id === 0) ready.resolve();
    pending.get(id)?.resolve(answer);
    pending.delete(id);
  });
  const gone = ended(child);
  void gone.then(() => {
    const error = new Error(`${script} in ${path} has ended`);
    ready.reject(error);
    for (const { reject } of pending.values()) reject(error);
  });
  // The script's end is reported by its exit; a write that races with it is not a second failure.
  child.stdin.on('error', () => {});
  const timer = setTimeout(() => ready.reject(new Error(`${script} did not start`)), START_DEADLINE_MS);
  await ready.promise.finally(() => clearTimeout(timer));

  return {
    async request<Answer>(request: Readonly<Record<string, unknown>>): Promise<Answer> {
      const id = ++last;
      const waiter = Promise.withResolvers<unknown>();
      pending.set(id, waiter);
      child.stdin.write(`${JSON.stringify({ id, ...request })}\n`);
      return (await waiter.promise) as Answer;
    },
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL');
      await gone;
    },
  };
}

function ended(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    child.once('exit', () => resolve());
    child.once('error', () => resolve());
  });
}

/** The other side of `startNamespaceProgram`: serves requests on stdin until it closes. */
export function serveRequests(handle: (request: Record<string, unknown>) => Promise<unknown> | unknown): void {
  createInterface({ input: process.stdin })
    .on('line', async (line) => {
      const request: Record<string, unknown> & { id: number } = JSON.parse(line);
      const answer = await handle(request);
      process.stdout.write(`${JSON.stringify({ id: request.id, answer })}\n`);
    })
    .on('close', () => process.exit(0));
  process.stdout.write(`${JSON.stringify({ id: 0 })}\n`);
}
