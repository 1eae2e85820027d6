import { spawn } from 'node:child_process';
import { once } from 'node:events';

/** A child process and its first line of output; disposing ends it, `by` the end of its input or a signal. */
export interface Child extends AsyncDisposable {
  readonly line: string;
}

/** Rejects when the process ends before it has said anything. */
export async function startChild(command: readonly string[], by: 'input' | 'SIGTERM'): Promise<Child> {
  const [program = '', ...args] = command;
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const died = exited.then(([code]) => {
    throw new Error(`${command.join(' ')} ended with ${code}`);
  });
  const [line] = await Promise.race([once(child.stdout.setEncoding('utf8'), 'data'), died]);
  return {
    line: String(line).trim(),
    async [Symbol.asyncDispose]() {
      if (by === 'input') child.stdin.end();
      else child.kill(by);
      await exited;
    },
  };
}
