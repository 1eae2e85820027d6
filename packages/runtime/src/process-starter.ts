import { fork } from 'node:child_process';
import { once } from 'node:events';
import { PlatformError } from '@agentenv/core';
import { type Answering, createAnswering } from './answering.ts';
import type {
  Argv,
  CommandEnd,
  CommandRequest,
  ProgramEnd,
  StartedProgram,
  StarterAnswer,
  StarterRequest,
} from './process-starter-protocol.ts';
import type { ProcessIdentity } from './processes.ts';

/** A command under way. */
export interface RunningCommand {
  /** Rejects when the starter ends first. */
  readonly ended: Promise<CommandEnd>;
  /** Ends it with everything it started; then that is how it ended. */
  end(): void;
}

/** A program that goes on when the server ends. */
export interface RunningProgram extends ProcessIdentity {
  /** How it ended; rejects when the starter ends first. Does not keep this process alive. */
  readonly ended: Promise<ProgramEnd>;
}

/** Starts the programs of this host. Disposing ends the commands under way and leaves the programs. */
export interface ProcessStarter extends AsyncDisposable {
  /** Has it running before it is needed. */
  prepare(): void;
  command(request: CommandRequest): RunningCommand;
  /** Starts a program in a session of its own. Rejects with `create_failed` when it cannot be started. */
  program(argv: Argv, env: Readonly<Record<string, string>>): Promise<RunningProgram>;
}

/** The starter is small; the map of a badly fragmented file is not. */
const EXEC_ARGV = ['--max-semi-space-size=1', '--max-old-space-size=512'];

function startStarter(): Answering<StarterRequest, StarterAnswer> {
  return createAnswering('process that starts programs', (onAnswer, onEnd) => {
    const child = fork(new URL('./process-starter-program.mjs', import.meta.url), {
      // A session of its own: an interrupt at the server's terminal is none of its business.
      ...{ detached: true, execArgv: EXEC_ARGV, stdio: ['ignore', 'ignore', 'inherit', 'ipc'] },
    });
    child.on('message', (answer) => onAnswer(answer as StarterAnswer));
    child.once('error', (cause) => onEnd('could not be started', cause));
    const exited = once(child, 'exit');
    exited.then(
      () => onEnd('ended'),
      () => undefined,
    );
    return {
      send(request) {
        // When it has ended meanwhile, its end is told.
        child.send(request, () => undefined);
      },
      hold(needed) {
        if (needed) {
          child.ref();
          child.channel?.ref();
        } else {
          child.unref();
          child.channel?.unref();
        }
      },
      async end() {
        if (child.exitCode !== null || child.signalCode !== null) return;
        child.ref();
        // It ends the commands under way, and then itself.
        if (child.connected) child.disconnect();
        await exited;
      },
    };
  });
}

/** An answer of the kind that was asked for. */
function expected<Kind extends StarterAnswer>(
  answer: StarterAnswer,
  is: (answer: StarterAnswer) => answer is Kind,
): Kind {
  if (!is(answer)) throw new PlatformError('internal', 'the process that starts programs gave another answer');
  return answer;
}

const isCommandEnd = (answer: StarterAnswer): answer is CommandEnd => 'stdout' in answer;
const isStartedProgram = (answer: StarterAnswer): answer is StartedProgram => 'pid' in answer;
const isProgramEnd = (answer: StarterAnswer): answer is ProgramEnd => 'how' in answer;

/**
 * A process of its own starts all others: whoever forks stands still until its page tables are copied, and afterwards pays
 * a fault for each page it writes to, in all of its threads, which takes a server of 100 MiB half a second on some hosts.
 * It ends with this process, however that ends; what it started as `program` does not.
 */
export function createProcessStarter(): ProcessStarter {
  const starter = startStarter();
  return {
    prepare: () => starter.prepare(),
    command(request) {
      const { answer, tell } = starter.call((id) => ({ id, command: request }));
      return {
        ended: answer.then((end) => expected(end, isCommandEnd)),
        end: () => tell((id) => ({ id, end: true })),
      };
    },
    async program(argv, env) {
      const started = await starter.call((id) => ({ id, program: argv, env })).answer;
      if (isProgramEnd(started)) {
        throw new PlatformError('create_failed', `${argv[0]} could not be started: ${started.how}`);
      }
      const { pid, startTime } = expected(started, isStartedProgram);
      const ended = starter.follow((id) => ({ id, endOf: pid })).then((end) => expected(end, isProgramEnd));
      // Whoever is interested waits for it.
      ended.catch(() => undefined);
      return { pid, startTime, ended };
    },
    [Symbol.asyncDispose]: () => starter[Symbol.asyncDispose](),
  };
}
