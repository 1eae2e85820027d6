/** What a process of a fake guest does; decided when it starts, so that it survives a snapshot as data. */
export type Program =
  | { readonly kind: 'result'; readonly stdout: string; readonly stderr: string; readonly code: number }
  | { readonly kind: 'cat' }
  | { readonly kind: 'sleep'; readonly milliseconds: number }
  | { readonly kind: 'power'; readonly event: 'poweroff' | 'reboot' | 'panic' };

/** What a command can see of its guest. */
export interface CommandContext {
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly cwd: string;
  readonly hostname: string;
  /** The text of a regular file, undefined when it is missing. */
  readonly readText: (path: string) => string | undefined;
}

const SHELLS = new Set(['bash', 'sh', '/bin/bash', '/bin/sh', '/usr/bin/bash', '/usr/bin/sh']);

function result(stdout: string, code = 0, stderr = ''): Program {
  return { kind: 'result', stdout, stderr, code };
}

/** The program an argument vector stands for, undefined when the guest has no such command. */
export function programOf(argv: readonly string[], context: CommandContext): Program | undefined {
  const [command = '', ...rest] = argv;
  if (SHELLS.has(command)) return shellProgram(command, rest, context);
  switch (command.slice(command.lastIndexOf('/') + 1)) {
    case 'true':
    case 'sync':
      return result('');
    case 'false':
      return result('', 1);
    case 'echo':
      return echo(rest);
    case 'pwd':
      return result(`${context.cwd}\n`);
    case 'whoami':
      return result(`${context.user}\n`);
    case 'hostname':
      return result(`${context.hostname}\n`);
    case 'printenv':
      return printenv(rest, context);
    case 'cat':
      return cat(rest, context);
    case 'sleep':
      return sleep(rest);
    case 'poweroff':
    case 'reboot':
      return { kind: 'power', event: command.endsWith('reboot') ? 'reboot' : 'poweroff' };
    default:
      return undefined;
  }
}

function echo(words: readonly string[]): Program {
  const [first, ...rest] = words;
  return first === '-n' ? result(rest.join(' ')) : result(`${words.join(' ')}\n`);
}

function printenv([name]: readonly string[], { env }: CommandContext): Program {
  if (name === undefined) {
    return result(
      Object.entries(env)
        .map(([key, value]) => `${key}=${value}\n`)
        .join(''),
    );
  }
  const value = env[name];
  return value === undefined ? result('', 1) : result(`${value}\n`);
}

function cat(paths: readonly string[], { cwd, readText }: CommandContext): Program {
  if (paths.length === 0) return { kind: 'cat' };
  let stdout = '';
  for (const path of paths) {
    const text = readText(path.startsWith('/') ? path : `${cwd}/${path}`);
    if (text === undefined) return result(stdout, 1, `cat: ${path}: No such file or directory\n`);
    stdout += text;
  }
  return result(stdout);
}

function sleep([duration]: readonly string[]): Program {
  if (duration === 'infinity') return { kind: 'sleep', milliseconds: Number.POSITIVE_INFINITY };
  const seconds = Number(duration);
  if (duration === undefined || !(seconds >= 0)) return result('', 1, `sleep: invalid time interval '${duration}'\n`);
  return { kind: 'sleep', milliseconds: seconds * 1_000 };
}

/** `sh [-l] -c SCRIPT` where the script is one simple command, `exit N`, or a sysrq panic. */
function shellProgram(shell: string, options: readonly string[], context: CommandContext): Program {
  const flag = options.findIndex((option) => /^-\w*c$/.test(option));
  const script = flag === -1 ? undefined : options[flag + 1];
  if (script === undefined) return { kind: 'cat' };
  if (/^echo c\s*>\s*\/proc\/sysrq-trigger$/.test(script.trim())) return { kind: 'power', event: 'panic' };
  const words = splitWords(script, context.env);
  const [command, argument] = words;
  if (command === undefined) return result('');
  if (command === 'exit') return result('', Number(argument ?? 0) & 0xff);
  return programOf(words, context) ?? result('', 127, `${shell}: line 1: ${command}: command not found\n`);
}

/** Words of one simple command: blanks separate, quotes join, `$NAME` expands outside single quotes. */
export function splitWords(script: string, env: Readonly<Record<string, string>>): string[] {
  const words: string[] = [];
  const pattern = /\s*((?:'[^']*'|"[^"]*"|[^\s'"])+)/gy;
  for (const match of script.matchAll(pattern)) {
    const word = (match[1] ?? '').replaceAll(/'([^']*)'|"([^"]*)"|([^'"]+)/g, (_, single, double, bare) => {
      if (single !== undefined) return single;
      const open: string = double ?? bare ?? '';
      return open.replaceAll(/\$\{?(\w+)\}?/g, (_all, name: string) => env[name] ?? '');
    });
    words.push(word);
  }
  return words;
}
