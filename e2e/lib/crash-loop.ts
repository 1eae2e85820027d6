import { type FSWatcher, watch } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { createSeededRandom } from '@agentenv/core/testing';
import { Sandbox } from 'e2b';
import { enginePid, engines, ledgerIds } from './host.ts';
import type { TestServer } from './server.ts';
import { waitUntil } from './wait.ts';

export interface CrashLoopOptions {
  readonly seed: number;
  /** How often the server is killed. */
  readonly kills: number;
  /** One line about each kill, when everything was found as it should be. */
  readonly onKill: (line: string) => void;
}

export interface CrashLoopFigures {
  /** From the start of the process to its first answer, milliseconds, for each kill. */
  readonly restarts: readonly number[];
  /** The first command in each sandbox after a restart, milliseconds. */
  readonly firstCommands: readonly number[];
  /** How often a sandbox was adopted. */
  readonly adopted: number;
}

/** What the owner of a sandbox has been promised. */
interface Owned {
  sandbox: Sandbox;
  state: 'running' | 'paused';
  /** Of a running one. */
  endAt: number;
  readonly processes: Set<number>;
  readonly files: Map<string, string>;
}

/** What an operation may have changed when its answer never came. */
interface Operation {
  readonly name: string;
  /** Whose state or deadline it changes. */
  readonly target: Owned | undefined;
  /** The answer is the promise; it notes in the model what holds from then on. */
  readonly run: () => Promise<void>;
  /** States the target may be in when there was no answer. */
  readonly possible: readonly ('running' | 'paused' | 'gone')[];
  /** Its capture can be watched. */
  readonly captures: boolean;
}

const DIRECTORY = '/home/user/loop';
const TIMEOUT_MS = 3_600_000;
const MOST_SANDBOXES = 3;
/** An operation under emulation takes about so long, milliseconds. */
const LONGEST_DELAY_MS = 1_500;
/** A capture does about so many things to files that can be seen. */
const CAPTURE_STEPS = 24;

function must(condition: boolean, what: string): asserts condition {
  if (!condition) throw new Error(what);
}

const sorted = (values: Iterable<string>): string => JSON.stringify([...values].toSorted());

/**
 * Kills a server again and again, at a random moment of an operation or at a step of its capture, and looks after each
 * restart whether everything acknowledged is there: state, deadline, processes, files; and whether ledger, list and engines
 * tell the same. The server must have no pool of warm machines, so that every engine belongs to a sandbox, and no sandboxes;
 * at the end it has none again. Throws what was not as it should be.
 */
export async function runCrashLoop(server: TestServer, options: CrashLoopOptions): Promise<CrashLoopFigures> {
  const random = createSeededRandom(options.seed);
  const owned = new Map<string, Owned>();
  const snapshots = new Map<string, Pick<Owned, 'files' | 'processes'>>();
  const restarts: number[] = [];
  const firstCommands: number[] = [];
  let adopted = 0;
  let serial = 0;

  const run = async ({ sandbox }: Pick<Owned, 'sandbox'>, command: string): Promise<string> =>
    (await sandbox.commands.run(command, { timeoutMs: 0, requestTimeoutMs: 0 })).stdout;

  async function take(sandbox: Sandbox, from?: Owned): Promise<Owned> {
    const { endAt } = await sandbox.getInfo();
    return {
      ...{ sandbox, state: 'running', endAt: endAt.getTime() },
      processes: new Set(from?.processes),
      files: new Map(from?.files),
    };
  }

  async function furnish(): Promise<void> {
    const fresh = await take(await Sandbox.create('base', { ...server.sdk, timeoutMs: TIMEOUT_MS }));
    const { pid } = await fresh.sandbox.commands.run('exec sleep infinity', { background: true, timeoutMs: 0 });
    fresh.processes.add(pid);
    await write(fresh);
    owned.set(fresh.sandbox.sandboxId, fresh);
  }

  async function write(target: Owned): Promise<void> {
    const name = `file-${++serial}`;
    const text = `text ${random.below(1_000_000)}`;
    await target.sandbox.files.write(`${DIRECTORY}/${name}`, text);
    target.files.set(name, text);
  }

  function ofState(state: Owned['state']): Owned | undefined {
    const [first, ...rest] = [...owned.values()].filter((candidate) => candidate.state === state);
    return first === undefined ? undefined : random.pick([first, ...rest]);
  }

  function choose(): Operation {
    const running = ofState('running');
    const paused = ofState('paused');
    const roomLeft = owned.size < MOST_SANDBOXES;
    const choices: Operation[] = [];
    const offer = (weight: number, operation: Operation): void => {
      for (let count = 0; count < weight; count++) choices.push(operation);
    };
    const plain = { target: undefined, possible: [], captures: false } as const;
    if (roomLeft) {
      offer(1, { ...plain, name: 'create', run: () => furnish() });
    }
    if (running !== undefined) {
      const { sandbox } = running;
      const { sandboxId } = sandbox;
      offer(3, {
        ...{ name: 'pause', target: running, possible: ['running', 'paused'], captures: true },
        async run() {
          await sandbox.pause();
          running.state = 'paused';
        },
      });
      offer(2, {
        ...{ ...plain, name: 'snapshot', captures: true },
        async run() {
          const { files, processes } = running;
          const had = { files: new Map(files), processes: new Set(processes) };
          snapshots.set((await sandbox.createSnapshot()).snapshotId, had);
        },
      });
      offer(2, {
        ...{ ...plain, name: 'fork', captures: true },
        async run() {
          const children = await sandbox.fork({ count: 1, timeoutMs: TIMEOUT_MS });
          for (const child of children) {
            if (child instanceof Error) throw child;
            owned.set(child.sandboxId, await take(child, running));
          }
        },
      });
      offer(1, {
        ...{ name: 'timeout', target: running, possible: ['running'], captures: false },
        async run() {
          await sandbox.setTimeout(TIMEOUT_MS - 60_000);
          running.endAt = (await sandbox.getInfo()).endAt.getTime();
        },
      });
      offer(1, { ...plain, name: 'write', run: () => write(running) });
      offer(1, {
        ...{ name: 'kill', target: running, possible: ['running', 'gone'], captures: false },
        async run() {
          await Sandbox.kill(sandboxId, server.sdk);
          owned.delete(sandboxId);
        },
      });
    }
    if (paused !== undefined) {
      offer(3, {
        ...{ name: 'resume', target: paused, possible: ['running', 'paused'], captures: false },
        async run() {
          const again = await take(
            await Sandbox.connect(paused.sandbox.sandboxId, { ...server.sdk, timeoutMs: TIMEOUT_MS }),
          );
          Object.assign(paused, { sandbox: again.sandbox, state: 'running', endAt: again.endAt });
        },
      });
    }
    const [first, ...rest] = choices;
    must(first !== undefined, 'there is always something to do');
    return random.pick([first, ...rest]);
  }

  /** Acknowledged snapshots can be started from; what is made of one has what its source had. */
  async function checkSnapshots(): Promise<void> {
    const there = (await Sandbox.listSnapshots(server.sdk).nextItems()).map(({ snapshotId }) => snapshotId);
    for (const [snapshotId, had] of snapshots) {
      must(there.includes(snapshotId), `snapshot ${snapshotId} is gone`);
      const copy = await Sandbox.create(snapshotId, { ...server.sdk, timeoutMs: TIMEOUT_MS });
      await checkInside({ sandbox: copy, ...had });
      await copy.kill();
    }
    snapshots.clear();
    for (const snapshotId of there) {
      const { status } = await server.api(`/templates/${encodeURIComponent(snapshotId)}`, { method: 'DELETE' });
      must(status === 204, `the removal of snapshot ${snapshotId} answered ${status}`);
    }
  }

  /** Resolves at a random moment, or at a random step of a capture. */
  function moment(operation: Operation): { readonly what: string; readonly reached: Promise<unknown> } & Disposable {
    if (operation.captures && random.below(3) > 0) {
      const step = 1 + random.below(CAPTURE_STEPS);
      return { what: `step ${step}`, ...atStep(join(server.home, 'snapshots'), step) };
    }
    const milliseconds = random.below(LONGEST_DELAY_MS);
    return { what: `${milliseconds} ms`, reached: delay(milliseconds), [Symbol.dispose]() {} };
  }

  /** Somebody else's writes, of which each one that is acknowledged has to be there. */
  async function bystander(operation: Operation): Promise<void> {
    const other = [...owned.values()].find(
      (candidate) => candidate.state === 'running' && candidate !== operation.target,
    );
    if (other === undefined) return;
    for (;;) await write(other);
  }

  async function listed(state: 'running' | 'paused'): Promise<string[]> {
    const items = await Sandbox.list({ ...server.sdk, query: { state: [state] } }).nextItems();
    return items.map(({ sandboxId }) => sandboxId);
  }

  /** What nobody was promised goes: sandboxes whose creation was not answered. */
  async function removeUnclaimed(ids: readonly string[]): Promise<void> {
    for (const id of ids) if (!owned.has(id)) await Sandbox.kill(id, server.sdk);
  }

  async function checkInside(target: Pick<Owned, 'sandbox' | 'files' | 'processes'>): Promise<void> {
    const { sandboxId } = target.sandbox;
    const from = performance.now();
    const found = await run(target, `cd ${DIRECTORY} && grep -rH '' . | sed 's,^./,,'`);
    firstCommands.push(performance.now() - from);
    const lines = new Map(
      found
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => {
          const [path = '', text = ''] = line.split(':');
          return [path, text] as const;
        }),
    );
    for (const [name, text] of target.files) {
      must(lines.get(name) === text, `${sandboxId}: ${name} is ${lines.get(name)}, not ${text}`);
    }
    const processes = (await target.sandbox.commands.list()).map(({ pid }) => pid);
    for (const pid of target.processes) must(processes.includes(pid), `${sandboxId}: process ${pid} is gone`);
  }

  async function check(operation: Operation, answered: boolean): Promise<void> {
    const [running, paused] = [await listed('running'), await listed('paused')];
    const ids = [...running, ...paused];
    must(sorted(ledgerIds(server)) === sorted(ids), `the ledger has ${ledgerIds(server)}, the list ${ids}`);
    const expected = running.map((id) => String(enginePid(server, id)));
    const actual = engines(server).map(String);
    must(sorted(actual) === sorted(expected), `engines ${actual}, of the ledger ${expected}`);
    for (const [id, one] of owned) {
      const state = running.includes(id) ? 'running' : paused.includes(id) ? 'paused' : 'gone';
      const free = one === operation.target && !answered ? operation.possible : [one.state];
      must(free.includes(state), `${id} is ${state}, not ${free.join(' or ')}`);
      if (state === 'gone') {
        owned.delete(id);
        continue;
      }
      one.state = state;
      if (state === 'paused') continue;
      adopted++;
      const { endAt } = await one.sandbox.getInfo();
      const changed = one === operation.target && !answered;
      must(changed || endAt.getTime() === one.endAt, `${id} ends at ${endAt.toISOString()}`);
      one.endAt = endAt.getTime();
      await checkInside(one);
    }
    await removeUnclaimed(ids);
    await checkSnapshots();
  }

  async function crash(): Promise<string> {
    const operation = choose();
    let answered = false;
    using when = moment(operation);
    const others = bystander(operation).catch(() => undefined);
    const running = (async () => {
      await operation.run();
      answered = true;
    })();
    const outcome = running.catch((error: unknown) => error);
    await Promise.race([when.reached, outcome]);
    await server.kill9();
    const failure = await outcome;
    await others;
    const from = performance.now();
    await server.restart();
    restarts.push(performance.now() - from);
    const line = `${operation.name} at ${when.what}${answered ? ', answered' : ''}`;
    try {
      await check(operation, answered);
    } catch (error) {
      throw new Error(`${line}: ${error instanceof Error ? error.message : String(error)}`, {
        cause: failure ?? error,
      });
    }
    return line;
  }

  await furnish();
  await furnish();
  for (let kill = 1; kill <= options.kills; kill++) {
    try {
      options.onKill(await crash());
    } catch (error) {
      throw new Error(`seed ${options.seed}, kill ${kill}: ${String(error)}`, { cause: error });
    }
    if (owned.size === 0) await furnish();
  }
  await endAll();
  return { restarts, firstCommands, adopted };

  async function endAll(): Promise<void> {
    for (const [id, one] of owned) {
      if (one.state === 'paused') {
        one.sandbox = await Sandbox.connect(id, { ...server.sdk, timeoutMs: TIMEOUT_MS });
        await checkInside(one);
      }
      await Sandbox.kill(id, server.sdk);
    }
    must(ledgerIds(server).length === 0, 'the ledger is not empty at the end');
    await waitUntil(() => engines(server).length === 0, { timeout: 20_000, what: 'all engines to be gone' });
    const captures = await readdir(join(server.home, 'snapshots'));
    must(captures.length === 0, `captures are left: ${captures.join(', ')}`);
  }
}

/** The `step`-th change of a file below `directory`; a capture is a series of them. */
function atStep(directory: string, step: number): { readonly reached: Promise<void> } & Disposable {
  const { promise, resolve } = Promise.withResolvers<void>();
  let seen = 0;
  const watcher: FSWatcher = watch(directory, { recursive: true }, () => {
    if (++seen === step) resolve();
  });
  return {
    reached: promise,
    [Symbol.dispose]() {
      watcher.close();
    },
  };
}
