import { execFile } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** The C sources of the guest agent in this repository. */
const GUEST_DIRECTORY = join(import.meta.dirname, '../../../../guest');
const BUILD_TIMEOUT_MS = 120_000;

export interface BuildGuestOptions {
  /** The build with address and undefined-behaviour sanitizers; slower, dynamic. */
  readonly sanitize?: boolean;
}

/** Builds the guest agent if it is missing or older than its sources; returns the path of the program. Test runs take turns. */
export async function buildGuest({ sanitize = false }: BuildGuestOptions = {}): Promise<string> {
  const output = join(GUEST_DIRECTORY, sanitize ? 'build-sanitize' : 'build');
  const program = join(output, 'aenv-guest');
  await mkdir(output, { recursive: true });
  const variable = `${sanitize ? 'SANITIZE_OUT' : 'OUT'}=${output}`;
  await run('flock', [join(output, '.lock'), 'make', '-s', '-C', GUEST_DIRECTORY, variable, program], {
    timeout: BUILD_TIMEOUT_MS,
  });
  return program;
}
