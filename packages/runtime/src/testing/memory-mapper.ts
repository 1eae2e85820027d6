import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';

/** Maps the file privately, changes some pages when told to, and prints the digest of all of it whenever asked. */
const MAPPER = `
import hashlib, mmap, sys
size = int(sys.argv[2])
with open(sys.argv[1], 'r+b') as file:
    memory = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE)
print('ready', flush=True)
for line in sys.stdin:
    if line.startswith('change'):
        for page in map(int, line.split()[1:]):
            memory[page * 4096:page * 4096 + 8] = page.to_bytes(8, 'little')
        print('changed', flush=True)
    elif line.startswith('fill'):
        value, *pages = map(int, line.split()[1:])
        for page in pages:
            memory[page * 4096:page * 4096 + 4096] = bytes([value]) * 4096
        print('filled', flush=True)
    else:
        print(hashlib.sha256(memory).hexdigest(), flush=True)
`;

/** A process with the file mapped as an engine maps guest memory. */
export class Mapper implements AsyncDisposable {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: AsyncIterator<string>;

  private constructor(child: ChildProcessByStdio<Writable, Readable, null>) {
    this.#child = child;
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  static async start(path: string, size: number): Promise<Mapper> {
    const child = spawn('python3', ['-c', MAPPER, path, String(size)], { stdio: ['pipe', 'pipe', 'inherit'] });
    const mapper = new Mapper(child);
    await mapper.#line();
    return mapper;
  }

  get pid(): number {
    return Number(this.#child.pid);
  }

  async #line(): Promise<string> {
    const line = await this.#lines.next();
    if (line.done === true) throw new Error('the process with the mapping ended');
    return line.value;
  }

  /** The pages begin with their numbers. */
  async change(pages: readonly number[]): Promise<void> {
    this.#child.stdin.write(`change ${pages.join(' ')}\n`);
    await this.#line();
  }

  /** Every byte of the pages becomes `value`. */
  async fill(value: number, pages: readonly number[]): Promise<void> {
    this.#child.stdin.write(`fill ${value} ${pages.join(' ')}\n`);
    await this.#line();
  }

  /** sha256 of all of the mapped memory. */
  async digest(): Promise<string> {
    this.#child.stdin.write('digest\n');
    return this.#line();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const exited = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await exited;
  }
}
