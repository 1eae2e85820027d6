import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** A service in a process of its own, with its memory. Needs root, as its guest does. */
export interface MeasuredEnvd extends AsyncDisposable {
  readonly port: number;
  /** From here on growth is counted; once, after a warm-up. Memory that was freed but not given back counts as growth. */
  setBaseline(): Promise<void>;
  /** By how many bytes the resident set of the process was ever above the baseline. */
  peakGrowth(): Promise<number>;
}

export async function startMeasuredEnvd(): Promise<MeasuredEnvd> {
  // With the young generation the server is started with (see `aenv`): the default alone may grow by 48 MiB.
  const child = spawn(process.execPath, ['--max-semi-space-size=2', join(import.meta.dirname, 'envd-process.ts')], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const [line] = await Promise.race([
    once(createInterface(child.stdout), 'line'),
    exited.then(() => Promise.reject(new Error('the service did not start'))),
  ]);
  const { pid } = child;
  if (pid === undefined) throw new Error('the service has no process');

  async function bytes(field: 'VmRSS' | 'VmHWM'): Promise<number> {
    const status = await readFile(`/proc/${pid}/status`, 'utf8');
    return Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(status)?.[1]) * 1024;
  }

  let baseline = 0;
  return {
    port: Number(line),
    async setBaseline() {
      // Makes the present size the highest one.
      await writeFile(`/proc/${pid}/clear_refs`, '5');
      baseline = await bytes('VmRSS');
    },
    async peakGrowth() {
      return (await bytes('VmHWM')) - baseline;
    },
    async [Symbol.asyncDispose]() {
      child.stdin.end();
      await exited;
    },
  };
}
