import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { loadRate } from './load.ts';

/** Runs `loadRate` in a process of its own; `prefix` is put in front of its command line, e.g. to enter a namespace. */
export async function runLoad(
  options: Parameters<typeof loadRate>[0],
  prefix: readonly string[] = [],
): Promise<Awaited<ReturnType<typeof loadRate>>> {
  const [program = '', ...args] = [...prefix, process.execPath, join(import.meta.dirname, 'load-process.ts')];
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.end(JSON.stringify(options));
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the load process ended with ${code}`);
  return JSON.parse(output);
}
