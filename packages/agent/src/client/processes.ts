import { PlatformError } from '@agentenv/core';
import type { Agent, GuestProcess, SpawnRequest } from '../agent.ts';
import type { RequestBody, ResponseBody } from '../channel/calls.ts';
import { STREAM_STEP } from '../channel/channel.ts';
import { FLAGS } from '../generated/protocol.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import type { ClientContext } from './context.ts';
import { DEADLINES } from './deadlines.ts';
import { createProcess, type ProcessFacts } from './process.ts';

/** Processes of one guest the host keeps track of; more is refused on spawn and a protocol error in a list. */
const MAX_PROCESSES = 4096;
/** Finished processes that are still answered with the same object; the guest forgets them after 30 s. */
const MAX_FINISHED = 1024;

type ProcessRow = ResponseBody<'listProcesses'>['processes'][number];

function factsOf(row: ProcessRow): ProcessFacts {
  const exit = {
    code: row.exitCode,
    signal: row.exitSignal,
    reason: 'ended',
    stdoutTotal: row.stdoutSent,
    stderrTotal: row.stderrSent,
  } as const;
  return {
    id: row.id,
    pid: row.pid,
    tag: row.tag,
    config: row.config,
    pty: (row.flags & FLAGS.SPAWN_PTY) !== 0,
    stdinOpen: row.stdinOpen,
    stdout: { sent: row.stdoutSent, ended: (row.flags & FLAGS.STDOUT_ENDED) !== 0 },
    stderr: { sent: row.stderrSent, ended: (row.flags & FLAGS.STDERR_ENDED) !== 0 },
    exit: row.exited ? exit : undefined,
  };
}

function environment(env: Readonly<Record<string, string>>): string[] {
  return Object.entries(env).map(([name, value]) => {
    if (name === '' || name.includes('=')) {
      throw new PlatformError('invalid_argument', 'env: a name is empty or contains "="', {
        details: { field: 'env' },
      });
    }
    return `${name}=${value}`;
  });
}

function spawnBody(request: SpawnRequest): RequestBody<'spawn'> {
  return {
    user: request.user,
    argv: request.argv,
    env: environment(request.env),
    cwd: request.cwd,
    defaultCwd: request.defaultCwd,
    flags: (request.pty === undefined ? 0 : FLAGS.SPAWN_PTY) | (request.stdin ? FLAGS.SPAWN_STDIN : 0),
    cols: request.pty?.cols ?? 0,
    rows: request.pty?.rows ?? 0,
    tag: request.tag,
    config: request.config,
    killAfterMs: BigInt(Math.ceil(request.killAfterMs)),
  };
}

/** The process table of one channel. */
export interface Processes extends Pick<Agent, 'spawn' | 'listProcesses'> {
  /** Whether a stream belongs to a process. */
  owns(stream: number): boolean;
}

/** Creates the empty table. */
export function createProcesses({ channel, calls, log }: ClientContext): Processes {
  const known = new Map<number, GuestProcess>();
  /** Ids of `known` that are over, oldest first. */
  const finished = new Set<number>();

  function adopt(facts: ProcessFacts): GuestProcess {
    const { id } = facts;
    const process = createProcess(facts, {
      channel,
      calls,
      log,
      onFinished() {
        finished.add(id);
        const [oldest] = finished;
        if (oldest !== undefined && finished.size > MAX_FINISHED) forget(oldest);
      },
    });
    known.set(id, process);
    return process;
  }

  function forget(id: number): void {
    finished.delete(id);
    known.delete(id);
  }

  function onList(rows: readonly ProcessRow[]): GuestProcess[] {
    if (rows.length > MAX_PROCESSES) throw new ProtocolViolation(`${rows.length} processes`);
    const listed = new Set(rows.map((row) => row.id));
    for (const id of [...finished]) {
      if (!listed.has(id)) forget(id);
    }
    return rows.map((row) => {
      channel.reserve(row.id);
      return known.get(row.id) ?? adopt(factsOf(row));
    });
  }

  return {
    owns: (stream) => known.has(stream - (stream % STREAM_STEP)),

    async spawn(request, signal) {
      if (known.size - finished.size >= MAX_PROCESSES) {
        throw new PlatformError('capacity', `a sandbox runs at most ${MAX_PROCESSES} processes`);
      }
      let process: GuestProcess | undefined;
      const call = calls.open('spawn', spawnBody(request), {
        deadlineMs: DEADLINES.spawn,
        signal,
        onResponse({ pid }) {
          process = adopt({
            id: call.stream.id,
            pid,
            tag: request.tag,
            config: request.config,
            pty: request.pty !== undefined,
            stdinOpen: request.stdin || request.pty !== undefined,
            stdout: { sent: 0n, ended: false },
            stderr: { sent: 0n, ended: false },
            exit: undefined,
          });
        },
      });
      await call.response;
      if (process === undefined) throw new PlatformError('internal', 'a process was started but not registered');
      return process;
    },

    async listProcesses(signal) {
      let list: GuestProcess[] = [];
      await calls.call(
        'listProcesses',
        {},
        {
          deadlineMs: DEADLINES.listProcesses,
          signal,
          onResponse({ processes }) {
            list = onList(processes);
          },
        },
      );
      return list;
    },
  };
}
