import { type FSWatcher, watch } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { createSeededRandom } from '@agentenv/core/testing';
import { Sandbox, SandboxError } from 'e2b';
import {
  type CrashModel,
  creation,
  type Kept,
  type Operation,
  type Owned,
  operationsOnPaused,
  operationsOnRunning,
  TIMEOUT_MS,
} from './crash-operations.ts';
import { enginePid, engines, ledgerIds } from './host.ts';
import { captureNames, stageOfCapture, waitForNoOrphans } from './remains.ts';
import type { TestServer } from './server.ts';
import { waitUntil } from './wait.ts';

export interface CrashLoopOptions {
  readonly seed: number;
  /** How often the server is killed. */
  readonly kills: number;
  /** One line about each kill, when everything was found as it should be, and how far its operation had come. */
  readonly onKill: (line: string, stage: string) => void;
}

export interface CrashLoopFigures {
  /** From the start of the process to its first answer, milliseconds, for each kill. */
  readonly restarts: readonly number[];
  /** The first command in each sandbox after a restart, milliseconds. */
  readonly firstCommands: readonly number[];
  /** How often a sandbox was adopted. */
  readonly adopted: number;
}

const DIRECTORY = '/home/user/loop';
const MOST_SANDBOXES = 4;
/** An operation under emulation takes about so long, milliseconds. */
const LONGEST_DELAY_MS = 1_500;
/** So many changes of files a capture shows, and some more until what it was made for is done. */
const CAPTURE_STEPS = 24;
/** A start of a server takes about so long, milliseconds. */
const LONGEST_START_MS = 3_500;

/** Emulated guests share what a busy host has, milliseconds. */
const BUSY_HOST_MS = 300_000;

/** Nothing was promised: the engine did not answer in the time a request has (docs/lifecycle.md, "Boot"). */
const isTooSlow = (error: unknown): boolean => error instanceof SandboxError && error.statusCode === 504;

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
  const snapshots = new Map<string, Kept>();
  const model: CrashModel = { server, owned, snapshots, take, furnish, write };
  const restarts: number[] = [];
  const firstCommands: number[] = [];
  let adopted = 0;
  let serial = 0;
  let captures = 0;

  const run = async ({ sandbox }: Pick<Owned, 'sandbox'>, command: string): Promise<string> =>
    (await sandbox.commands.run(command, { timeoutMs: 0, requestTimeoutMs: 0 })).stdout;

  async function take(sandbox: Sandbox, from?: Kept): Promise<Owned> {
    const { endAt } = await sandbox.getInfo();
    return {
      ...{ sandbox, state: 'running', memory: 'kept', endAt: endAt.getTime() },
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

  /** Every other file by a program that syncs it. */
  async function write(target: Owned): Promise<void> {
    const name = `file-${++serial}`;
    const text = `text ${random.below(1_000_000)}`;
    const synced = serial % 2 === 0;
    const path = `${DIRECTORY}/${name}`;
    if (synced)
      await run(target, `mkdir -p ${DIRECTORY}; echo ${text} > ${path}; sync ${path} ${DIRECTORY} /home/user`);
    else await target.sandbox.files.write(path, text);
    target.files.set(name, { text, synced });
  }

  function oneOf<T>(candidates: readonly T[]): T | undefined {
    const [first, ...rest] = candidates;
    return first === undefined ? undefined : random.pick([first, ...rest]);
  }

  function choose(): Operation {
    const running = oneOf([...owned.values()].filter(({ state }) => state === 'running'));
    const paused = oneOf([...owned.values()].filter(({ state }) => state === 'paused'));
    const choice = oneOf([
      ...(owned.size < MOST_SANDBOXES ? [creation(model)] : []),
      ...(running === undefined ? [] : operationsOnRunning(model, running)),
      ...(paused === undefined ? [] : operationsOnPaused(model, paused)),
    ]);
    must(choice !== undefined, 'there is always something to do');
    return choice;
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
      // One after the other, so that none is left out; consecutive seeds begin apart.
      const step = 1 + ((options.seed * 7 + captures++) % CAPTURE_STEPS);
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

  async function checkInside(target: Pick<Owned, 'sandbox'> & Kept): Promise<void> {
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
    for (const [name, { text }] of target.files) {
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
      // Done, although nobody was told.
      if (state !== one.state) operation.done();
      if (state !== 'running') continue;
      adopted++;
      const { endAt } = await one.sandbox.getInfo();
      const changed = one === operation.target && !answered;
      must(changed || endAt.getTime() === one.endAt, `${id} ends at ${endAt.toISOString()}`);
      one.endAt = endAt.getTime();
      await checkInside(one);
    }
    await waitForNoOrphans(server);
    await removeUnclaimed(ids);
    await checkSnapshots();
  }

  /** The next server; sometimes it dies as well before it answers, and it is the one after it. */
  async function restart(): Promise<string> {
    let killed = '';
    if (random.below(5) === 0) {
      const milliseconds = random.below(LONGEST_START_MS);
      const interrupted = server.restart().catch((error: unknown) => error);
      await Promise.race([delay(milliseconds), interrupted]);
      await server.kill9();
      await interrupted;
      killed = `, the next one ${milliseconds} ms after its start`;
    }
    const from = performance.now();
    await server.restart();
    restarts.push(performance.now() - from);
    return killed;
  }

  async function crash(): Promise<void> {
    const operation = choose();
    const before = captureNames(server);
    let answered = false;
    using when = moment(operation);
    const others = bystander(operation).catch(() => undefined);
    const running = (async () => {
      await operation.run();
      operation.done();
      answered = true;
    })();
    let alive = true;
    const outcome = running.catch((error: unknown) => {
      if (alive && !isTooSlow(error)) throw new Error(`${operation.name} failed: ${String(error)}`, { cause: error });
      return error;
    });
    await Promise.race([when.reached, outcome]);
    alive = false;
    await server.kill9();
    const failure = await outcome;
    await others;
    const stage = answered ? 'answered' : operation.captures ? stageOfCapture(server, before) : 'no answer';
    const line = `${operation.name} at ${when.what}: ${stage}`;
    try {
      const more = await restart();
      await check(operation, answered);
      options.onKill(`${line}${more}`, `${operation.name}: ${stage}`);
    } catch (error) {
      throw new Error(`${line}: ${error instanceof Error ? error.message : String(error)}`, {
        cause: failure ?? error,
      });
    }
  }

  await furnish();
  await furnish();
  for (let kill = 1; kill <= options.kills; kill++) {
    try {
      await crash();
    } catch (error) {
      throw new Error(`seed ${options.seed}, kill ${kill}: ${String(error)}`, { cause: error });
    }
    if (owned.size < MOST_SANDBOXES && ![...owned.values()].some(({ state }) => state === 'running')) await furnish();
  }
  await endAll();
  return { restarts, firstCommands, adopted };

  /** It is paused as before when a busy host does not boot it in time. */
  async function connect(id: string): Promise<Sandbox> {
    return waitUntil(
      () =>
        Sandbox.connect(id, { ...server.sdk, timeoutMs: TIMEOUT_MS }).catch((error: unknown) => {
          if (!isTooSlow(error)) throw error;
          return undefined;
        }),
      { timeout: BUSY_HOST_MS, what: `${id} to go on` },
    );
  }

  async function endAll(): Promise<void> {
    for (const [id, one] of owned) {
      if (one.state === 'paused') {
        one.sandbox = await connect(id);
        await checkInside(one);
      }
      await Sandbox.kill(id, server.sdk);
    }
    must(ledgerIds(server).length === 0, 'the ledger is not empty at the end');
    await waitUntil(() => engines(server).length === 0, { timeout: 20_000, what: 'all engines to be gone' });
    await waitForNoOrphans(server);
    const left = captureNames(server);
    must(left.length === 0, `captures are left: ${left.join(', ')}`);
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
