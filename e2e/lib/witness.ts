import type { Sandbox } from 'e2b';

/**
 * A program that counts and reads random bytes until it is stopped, from both sources a program has. One line each time: the
 * count, the time, bytes of getrandom, the time, bytes of /dev/urandom, the time. Its argument is the CPU it stays on: the
 * kernel has a generator for each of them.
 */
const PROGRAM = `
import os, sys, time
cpu = sys.argv[1]
os.sched_setaffinity(0, {int(cpu)})
device = open('/dev/urandom', 'rb', buffering=0)
log = open('/home/user/witness-' + cpu, 'w', buffering=1)
counter = 0
while True:
    counter += 1
    a = time.time_ns()
    x = os.getrandom(16).hex()
    b = time.time_ns()
    y = device.read(16).hex()
    print(counter, a, x, b, y, time.time_ns(), file=log)
    time.sleep(0.01)
`;

/** The CPUs of a sandbox of \`base\`. */
export const CPUS = ['0', '1'] as const;

/** One turn of the program; a time in nanoseconds, as digits. */
interface Turn {
  readonly count: number;
  readonly times: readonly [string, string, string];
  readonly getrandom: string;
  readonly urandom: string;
}

/** What one copy of the program saw. */
export type Testimony = readonly Turn[];

/** Starts the program on every CPU; resolves with its processes. */
export async function startWitnesses(sandbox: Sandbox): Promise<readonly number[]> {
  await sandbox.files.write('witness.py', PROGRAM);
  const started = CPUS.map((cpu) =>
    sandbox.commands.run(`python3 witness.py ${cpu}`, { background: true, timeoutMs: 0 }),
  );
  return (await Promise.all(started)).map(({ pid }) => pid);
}

export async function readTestimony(sandbox: Sandbox, cpu: string): Promise<Testimony> {
  const text = await sandbox.files.read(`witness-${cpu}`, { requestTimeoutMs: 120_000 });
  // The last line may not be complete.
  return text.slice(0, text.lastIndexOf('\n')).split('\n').map(parseTurn);
}

function parseTurn(line: string): Turn {
  const [count = '', a = '', getrandom = '', b = '', urandom = '', c = ''] = line.split(' ');
  return { count: Number(count), times: [a, b, c], getrandom, urandom };
}

/**
 * The bytes a copy drew for certain after it was made: whatever lies behind the first time that differs from that of
 * another copy. Bytes are no sign of it, they are what is compared.
 */
export function drawnAfter(copy: Testimony, other: Testimony): readonly string[] {
  const firstOwnTime = (turn: Turn, index: number): number =>
    turn.times.findIndex((time, part) => time !== other[index]?.times[part]);
  const at = copy.findIndex((turn, index) => firstOwnTime(turn, index) >= 0);
  const [turn, ...later] = at < 0 ? [] : copy.slice(at);
  if (turn === undefined) return [];
  const inTurn = [turn.getrandom, turn.urandom].slice(firstOwnTime(turn, at));
  return [...inTurn, ...later.flatMap(({ getrandom, urandom }) => [getrandom, urandom])];
}
