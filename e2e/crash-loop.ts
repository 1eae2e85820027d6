import { parseArgs } from 'node:util';
import { runCrashLoop } from './lib/crash-loop.ts';
import { remainsOfStopped } from './lib/remains.ts';
import { NO_POOL, startServer } from './lib/server.ts';

const HELP = `Usage: node e2e/crash-loop.ts [--kills 200] [--seed N]

Kills a server of its own again and again, at random moments of operations and at the steps of captures, and checks after
every restart that nothing acknowledged is lost and nothing is left behind. Needs root and what \`./aenv setup\` prepares.`;

const OPTIONS = {
  kills: { type: 'string', default: '200' },
  seed: { type: 'string', default: '1' },
  help: { type: 'boolean', short: 'h' },
} as const;

/** Undefined: help is asked for. Throws on anything it does not know. */
function readArguments(): { readonly kills: number; readonly seed: number } | undefined {
  const { values } = parseArgs({ options: OPTIONS });
  if (values.help) return undefined;
  const positive = (name: 'kills' | 'seed'): number => {
    const value = Number(values[name]);
    if (Number.isSafeInteger(value) && value >= 1) return value;
    throw new Error(`--${name} takes a positive number, not ${values[name]}`);
  };
  return { kills: positive('kills'), seed: positive('seed') };
}

function figure(name: string, samples: readonly number[]): string {
  const ordered = samples.toSorted((left, right) => left - right);
  const at = (share: number): number => Math.round(ordered[Math.floor((ordered.length - 1) * share)] ?? 0);
  return `${name}: median ${at(0.5)} ms, 95 of 100 within ${at(0.95)} ms, longest ${at(1)} ms`;
}

async function run({ kills, seed }: { readonly kills: number; readonly seed: number }): Promise<void> {
  await using server = await startServer({ config: NO_POOL });
  const stages = new Map<string, number>();
  let count = 0;
  const onKill = (line: string, stage: string): void => {
    stages.set(stage, (stages.get(stage) ?? 0) + 1);
    console.log(`${++count} ${line}`);
  };
  const { restarts, firstCommands, adopted } = await runCrashLoop(server, { seed, kills, onKill });
  await server.stop();
  const left = remainsOfStopped(server);
  if (left.length > 0) throw new Error(`left behind: ${left.join(', ')}`);
  console.log(`${kills} kills, seed ${seed}: ${adopted} times a sandbox was adopted, nothing lost, nothing left`);
  for (const [stage, times] of [...stages].toSorted()) console.log(`${times} × ${stage}`);
  console.log(figure('restart to first answer', restarts));
  console.log(figure('first command after it', firstCommands));
}

let asked: ReturnType<typeof readArguments>;
try {
  asked = readArguments();
} catch (error) {
  console.error(`${error instanceof Error ? error.message : String(error)}\n\n${HELP}`);
  process.exit(2);
}
if (asked === undefined) console.log(HELP);
else await run(asked);
