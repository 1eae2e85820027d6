import { type ChildProcessByStdio, spawn } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';
import { type Clock, PlatformError } from '@agentenv/core';

/**
 * An `ip -batch` process kept open inside one namespace: a command costs a write instead of two process starts.
 * Commands run in the order they were asked for.
 */
export interface IpBatch extends AsyncDisposable {
  /** Throws `internal` with what `ip` said about the first failing one; the others are run all the same. */
  run(commands: readonly string[]): Promise<void>;
}

/** Printed by `ip` for this command when everything before it is done; `-oneline` makes it exactly one line. */
const MARKER_COMMAND = 'link show dev lo';
const MARKER = /^\d+: lo:.*\n/m;
const DEADLINE_MS = 10_000;
const MAX_REPLY = 64 * 1024;

type Child = ChildProcessByStdio<Writable, Readable, null>;

export function createIpBatch({ netns, clock }: { readonly netns: string; readonly clock: Clock }): IpBatch {
  let child: Child | undefined;
  let last: Promise<void> = Promise.resolve();
  let disposed = false;

  function start(): Child {
    // Both outputs in one pipe keep a complaint in front of the marker that follows it.
    const script = 'exec nsenter --net="$1" ip -force -oneline -batch - 2>&1';
    const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };
    const started = spawn('sh', ['-c', script, 'sh', netns], {
      env,
      stdio: ['pipe', 'pipe', 'ignore'],
      detached: true,
    });
    started.stdout.setEncoding('utf8');
    // Its end is reported by `exit`; a write that races with it is not a second failure.
    started.stdin.on('error', () => {});
    started.once('exit', () => {
      if (child === started) child = undefined;
    });
    return started;
  }

  /** Resolves with everything said before the marker. */
  function exchange(process: Child, commands: readonly string[]): Promise<string> {
    return new Promise((resolve, reject) => {
      let reply = '';
      const settle = (finish: () => void): void => {
        timer[Symbol.dispose]();
        process.stdout.off('data', onData);
        process.off('exit', onExit);
        process.off('error', onExit);
        finish();
      };
      const onData = (text: string): void => {
        reply = (reply + text).slice(-MAX_REPLY);
        const marker = MARKER.exec(reply);
        if (marker !== null) settle(() => resolve(reply.slice(0, marker.index)));
      };
      const onExit = (): void => settle(() => reject(new PlatformError('internal', `ip ended early: ${reply.trim()}`)));
      const timer = clock.timer(DEADLINE_MS, () => {
        process.kill('SIGKILL');
        settle(() => reject(new PlatformError('deadline_exceeded', 'ip did not answer')));
      });
      process.stdout.on('data', onData);
      process.once('exit', onExit);
      process.once('error', onExit);
      process.stdin.write(`${[...commands, MARKER_COMMAND].join('\n')}\n`);
    });
  }

  async function next(commands: readonly string[]): Promise<void> {
    if (disposed) throw new PlatformError('unavailable', 'the network is shut down');
    child ??= start();
    const complaint = (await exchange(child, commands)).trim();
    if (complaint !== '') throw new PlatformError('internal', `ip: ${complaint}`, { details: { commands } });
  }

  return {
    run(commands) {
      const turn = last.then(() => next(commands));
      // The next one waits for the end of this one, whatever it was.
      last = turn.catch(() => {});
      return turn;
    },
    async [Symbol.asyncDispose]() {
      await last;
      disposed = true;
      const current = child;
      if (current === undefined) return;
      const gone = new Promise((resolve) => current.once('exit', resolve));
      current.stdin.end();
      const timer = clock.timer(DEADLINE_MS, () => current.kill('SIGKILL'));
      await gone;
      timer[Symbol.dispose]();
    },
  };
}
