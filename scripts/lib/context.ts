import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { SetupContext } from '../setup/step.ts';
import { run } from './command.ts';
import type { RepositoryPaths } from './paths.ts';

const ARCHITECTURES: Readonly<Record<string, 'amd64' | 'arm64'>> = { x64: 'amd64', arm64: 'arm64' };

/** Debian's name of the architecture this runs on; the launcher lets only these two through. */
export function debianArchitecture(): 'amd64' | 'arm64' {
  return ARCHITECTURES[process.arch] ?? 'amd64';
}

/** The set-up context of this process; `lockFd` is inherited by every command. */
export function createSetupContext(
  paths: RepositoryPaths,
  out: { log(text: string): void; progress(text: string): void },
  lockFd?: number,
): SetupContext {
  let last: Promise<unknown> = Promise.resolve();
  // An ordinary user's PATH lacks the directories of mke2fs, depmod and the like.
  const env = { ...process.env, PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin` };
  return {
    paths,
    env,
    architecture: debianArchitecture(),
    uid: process.getuid?.() ?? 0,
    progress: (text) => {
      out.log(`# ${text}\n`);
      out.progress(text);
    },
    run: (command, args, options = {}) => {
      out.log(`$ ${[command, ...args].join(' ')}\n`);
      return run(command, args, { timeoutMs: 120_000, env, inheritFd: lockFd, onOutput: out.log, ...options });
    },
    exclusive(work) {
      const turn = last.then(work);
      // The next one waits for the end of this one, whatever it was.
      last = turn.catch(() => undefined);
      return turn;
    },
    scratch: async (name) => {
      const directory = join(paths.scratch, name);
      await rm(directory, { recursive: true, force: true });
      await mkdir(directory, { recursive: true });
      return directory;
    },
  };
}
