import { PlatformError } from '@agentenv/core';
import type { PTY, StartRequest } from '@agentenv/protocol/process';
import { identityVariables, type SandboxIdentity } from '../system/environment.ts';
import type { ProcessDescription } from './process-record.ts';
import type { SpawnPlan } from './process-table.ts';

/** The kernel's limit of one argument or variable, bytes, its end mark not counted (MAX_ARG_STRLEN). */
const MAX_STRING_BYTES = 131_071;
/** Command line and environment together, bytes: they travel twice in one frame of the agent channel (1 MiB). */
const MAX_TOTAL_BYTES = 480 * 1024;
const MAX_TAG_BYTES = 1024;
const MAX_STRINGS = 16_384;
const MAX_TERMINAL_SIDE = 65_535;

export interface SpawnContext extends SandboxIdentity {
  readonly user: string;
  /** Home of that user; only asked for when the working directory needs it. */
  readonly home: () => Promise<string>;
  readonly defaultWorkdir: string | undefined;
  readonly globalEnv: Readonly<Record<string, string>>;
  readonly killAfterMs: number;
}

export interface PlannedProcess {
  readonly plan: SpawnPlan;
  readonly description: ProcessDescription;
}

/** What the guest is asked to start, or `invalid_argument` naming what it could not take. */
export async function planProcess(request: StartRequest, context: SpawnContext): Promise<PlannedProcess> {
  const { process, pty, stdin, tag } = request;
  if (process === undefined || process.cmd === '') {
    throw new PlatformError('invalid_argument', 'process.cmd is required');
  }
  const argv = [process.cmd, ...process.args];
  const env = {
    ...context.globalEnv,
    ...process.envs,
    ...identityVariables(context),
  };
  checkSizes(argv, env);
  checkString('tag', tag ?? '', MAX_TAG_BYTES);
  const size = pty === undefined ? undefined : terminalSize(pty);
  const plan: SpawnPlan = {
    user: context.user,
    argv,
    env,
    cwd: await expandHome(process.cwd ?? '', context),
    defaultCwd: context.defaultWorkdir ?? '',
    ...(size === undefined ? {} : { pty: size }),
    stdin: stdin ?? true,
    killAfterMs: context.killAfterMs,
  };
  return { plan, description: { tag, config: process } };
}

/** The size of a terminal; one without rows or columns is what the kernel starts with. */
export function terminalSize(pty: PTY): { readonly cols: number; readonly rows: number } {
  const { cols, rows } = pty.size ?? { cols: 0, rows: 0 };
  if (cols > MAX_TERMINAL_SIDE || rows > MAX_TERMINAL_SIDE) {
    throw new PlatformError('invalid_argument', `pty.size: ${cols}x${rows} is larger than ${MAX_TERMINAL_SIDE}`);
  }
  return { cols, rows };
}

/** The agent joins what is relative to the home; only `~` is unknown to it. */
async function expandHome(cwd: string, { home }: SpawnContext): Promise<string> {
  checkString('cwd', cwd, 4095);
  if (cwd !== '~' && !cwd.startsWith('~/')) {
    if (!cwd.startsWith('~')) return cwd;
    throw new PlatformError('invalid_argument', `cwd '${cwd}': the home of another user is not supported`);
  }
  return `${await home()}${cwd.slice(1)}`;
}

function checkSizes(argv: readonly string[], env: Readonly<Record<string, string>>): void {
  const names = Object.keys(env);
  if (argv.length + names.length > MAX_STRINGS) {
    throw new PlatformError('invalid_argument', `more than ${MAX_STRINGS} arguments and variables`);
  }
  let total = 0;
  argv.forEach((argument, index) => {
    total += checkString(index === 0 ? 'cmd' : `args[${index - 1}]`, argument, MAX_STRING_BYTES);
  });
  for (const [name, value] of Object.entries(env)) {
    if (name === '' || name.includes('=')) {
      throw new PlatformError('invalid_argument', `envs: '${name}' is not a name a variable can have`);
    }
    total += checkString(`envs['${name.slice(0, 64)}']`, `${name}=${value}`, MAX_STRING_BYTES);
  }
  if (total > MAX_TOTAL_BYTES) {
    throw new PlatformError(
      'invalid_argument',
      `command line and environment are ${total} bytes, the limit is ${MAX_TOTAL_BYTES}; pass large input by stdin or a file`,
    );
  }
}

/** The size in bytes of a string the kernel can take. */
function checkString(field: string, value: string, max: number): number {
  if (value.includes('\0')) throw new PlatformError('invalid_argument', `${field} contains a NUL byte`);
  const bytes = Buffer.byteLength(value, 'utf8');
  if (bytes > max) throw new PlatformError('invalid_argument', `${field} is ${bytes} bytes, the limit is ${max}`);
  return bytes;
}
