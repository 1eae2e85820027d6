import type { CaptureKind } from '../sandbox.ts';
import type { SeededRandom } from './seeded-random.ts';

/** What exists on a host, as four witnesses that know nothing of each other tell. */
export interface HostInventory {
  /** By the list of the API. */
  readonly running: readonly string[];
  readonly paused: readonly string[];
  /** Sandbox of every engine there is; one that is named twice has two live generations. */
  readonly engines: readonly string[];
  /** Sandboxes with a record in the ledger. */
  readonly records: readonly string[];
  /** Names of all snapshots. */
  readonly snapshots: readonly string[];
}

/** A host under test, whatever runs its sandboxes. Ids are opaque. */
export interface LifecycleSubject {
  /** From the base template, or from a snapshot. */
  create(from: string | undefined): Promise<string>;
  pause(id: string, keeps: CaptureKind): Promise<void>;
  /** From its disk: it boots, though there is memory. */
  resume(id: string, from: CaptureKind): Promise<void>;
  kill(id: string): Promise<void>;
  snapshot(id: string): Promise<string>;
  /** `in-use`: a sandbox that exists was started from it. */
  removeSnapshot(name: string): Promise<'removed' | 'in-use'>;
  fork(id: string, count: number): Promise<readonly string[]>;
  write(id: string, file: string, text: string): Promise<void>;
  remove(id: string, file: string): Promise<void>;
  /** Contents of every file the model wrote, by name. */
  files(id: string): Promise<ReadonlyMap<string, string>>;
  /** Starts a process that lives on; resolves to its pid. */
  spawn(id: string): Promise<number>;
  end(id: string, pid: number): Promise<void>;
  /** Pids of the processes the model started and did not end. */
  processes(id: string): Promise<readonly number[]>;
  inspect(): Promise<HostInventory>;
}

/** What is inside of a sandbox, and is carried by every copy of it. */
interface Contents {
  readonly files: ReadonlyMap<string, string>;
  readonly pids: ReadonlySet<number>;
}

interface ModelSandbox extends Contents {
  readonly state: 'running' | 'paused';
  /** What its pause kept. */
  readonly kept: CaptureKind;
  /** The snapshot it was started from. */
  readonly from: string | undefined;
}

interface ModelSnapshot extends Contents {
  readonly name: string;
}

/** Only what makes a difference: few names, so that files are overwritten. */
const FILES = ['a', 'b', 'c', 'd'] as const;

export interface LifecycleModelOptions {
  readonly steps: number;
  /** Sandboxes at a time; a create or a fork beyond it is left out. */
  readonly maxSandboxes: number;
  readonly maxSnapshots: number;
  /** Told before each step, so that a failure can be read. */
  onStep?(step: number, what: string): void;
}

/** Fails with what was expected and what is. */
export type Expect = (what: string, actual: unknown, expected: unknown) => void;

/**
 * Runs random operations one after the other against a host and a model of it, and compares them after each: which
 * sandboxes and snapshots exist, by four witnesses, and the contents of the sandbox that was touched. Everything that is
 * left is compared and removed at the end.
 */
export async function runLifecycleModel(
  subject: LifecycleSubject,
  rng: SeededRandom,
  expect: Expect,
  options: LifecycleModelOptions,
): Promise<void> {
  const sandboxes = new Map<string, ModelSandbox>();
  const snapshots = new Map<string, ModelSnapshot>();
  let texts = 0;

  const some = <T>(items: readonly T[]): T | undefined => items[rng.below(items.length)];
  const inState = (state: ModelSandbox['state']) =>
    [...sandboxes].flatMap(([id, sandbox]) => (sandbox.state === state ? [[id, sandbox] as const] : []));
  const copy = ({ files, pids }: Contents): Contents => ({ files, pids });
  const NO_PROCESSES: ReadonlySet<number> = new Set();
  const change = (id: string, sandbox: ModelSandbox, to: Partial<ModelSandbox>): string => {
    sandboxes.set(id, { ...sandbox, ...to });
    return id;
  };

  /** Memory is lost by a pause without it, and by a boot though it is there. */
  const wake = async (id: string, sandbox: ModelSandbox, from: CaptureKind): Promise<string> => {
    await subject.resume(id, from);
    const boots = from === 'disk' || sandbox.kept === 'disk';
    return change(id, sandbox, { state: 'running', ...(boots ? { pids: NO_PROCESSES } : {}) });
  };

  /** Each resolves to the running sandbox it touched. */
  const steps = {
    async create() {
      if (sandboxes.size >= options.maxSandboxes) return undefined;
      const snapshot = rng.below(3) === 0 ? some([...snapshots.values()]) : undefined;
      const contents = snapshot ?? { files: new Map(), pids: new Set<number>() };
      const id = await subject.create(snapshot?.name);
      sandboxes.set(id, { ...copy(contents), state: 'running', kept: 'full', from: snapshot?.name });
      return id;
    },
    async write() {
      const [id, sandbox] = some(inState('running')) ?? [];
      if (id === undefined || sandbox === undefined) return undefined;
      const file = rng.pick(FILES);
      const text = `text ${++texts}`;
      await subject.write(id, file, text);
      return change(id, sandbox, { files: new Map(sandbox.files).set(file, text) });
    },
    async remove() {
      const [id, sandbox] = some(inState('running').filter(([, { files }]) => files.size > 0)) ?? [];
      const file = some([...(sandbox?.files.keys() ?? [])]);
      if (id === undefined || sandbox === undefined || file === undefined) return undefined;
      await subject.remove(id, file);
      return change(id, sandbox, { files: new Map([...sandbox.files].filter(([name]) => name !== file)) });
    },
    async spawn() {
      const [id, sandbox] = some(inState('running').filter(([, { pids }]) => pids.size < 3)) ?? [];
      if (id === undefined || sandbox === undefined) return undefined;
      const pid = await subject.spawn(id);
      return change(id, sandbox, { pids: new Set(sandbox.pids).add(pid) });
    },
    async end() {
      const [id, sandbox] = some(inState('running').filter(([, { pids }]) => pids.size > 0)) ?? [];
      const pid = some([...(sandbox?.pids ?? [])]);
      if (id === undefined || sandbox === undefined || pid === undefined) return undefined;
      await subject.end(id, pid);
      return change(id, sandbox, { pids: new Set([...sandbox.pids].filter((other) => other !== pid)) });
    },
    async pause() {
      const [id, sandbox] = some(inState('running')) ?? [];
      if (id === undefined || sandbox === undefined) return undefined;
      const kept = rng.below(3) === 0 ? 'disk' : 'full';
      await subject.pause(id, kept);
      change(id, sandbox, { state: 'paused', kept });
      return undefined;
    },
    async resume() {
      const [id, sandbox] = some(inState('paused')) ?? [];
      if (id === undefined || sandbox === undefined) return undefined;
      return await wake(id, sandbox, rng.below(4) === 0 ? 'disk' : 'full');
    },
    async snapshot() {
      const [id, sandbox] = some(inState('running')) ?? [];
      if (id === undefined || sandbox === undefined || snapshots.size >= options.maxSnapshots) return undefined;
      const name = await subject.snapshot(id);
      snapshots.set(name, { ...copy(sandbox), name });
      return id;
    },
    async removeSnapshot() {
      const snapshot = some([...snapshots.values()]);
      if (snapshot === undefined) return undefined;
      const used = [...sandboxes.values()].some(({ from }) => from === snapshot.name);
      expect('removal of a snapshot', await subject.removeSnapshot(snapshot.name), used ? 'in-use' : 'removed');
      if (!used) snapshots.delete(snapshot.name);
      return undefined;
    },
    async fork() {
      const [id, sandbox] = some(inState('running')) ?? [];
      const count = 1 + rng.below(3);
      if (id === undefined || sandbox === undefined || sandboxes.size + count > options.maxSandboxes) return undefined;
      const children = await subject.fork(id, count);
      expect('children of a fork', children.length, count);
      const { from } = sandbox;
      for (const child of children) sandboxes.set(child, { ...copy(sandbox), state: 'running', kept: 'full', from });
      return rng.below(2) === 0 ? id : children[0];
    },
    async kill() {
      const id = some([...sandboxes.keys()]);
      if (id === undefined) return undefined;
      await subject.kill(id);
      sandboxes.delete(id);
      return undefined;
    },
  };

  async function compareContents(id: string): Promise<void> {
    const { files, pids } = sandboxes.get(id) ?? { files: new Map(), pids: new Set() };
    const sorted = (entries: Iterable<readonly [string, string]>) => [...entries].sort(([a], [b]) => (a < b ? -1 : 1));
    expect(`files of ${id}`, sorted(await subject.files(id)), sorted(files));
    const ascending = (numbers: Iterable<number>) => [...numbers].sort((a, b) => a - b);
    expect(`processes of ${id}`, ascending(await subject.processes(id)), ascending(pids));
  }

  async function compareHost(): Promise<void> {
    const { running, paused, engines, records, snapshots: names } = await subject.inspect();
    const ids = (state: ModelSandbox['state']) => inState(state).map(([id]) => id);
    expect('running sandboxes', [...running].sort(), ids('running').sort());
    expect('paused sandboxes', [...paused].sort(), ids('paused').sort());
    expect('engines', [...engines].sort(), ids('running').sort());
    expect('records', [...records].sort(), [...sandboxes.keys()].sort());
    expect('snapshots', [...names].sort(), [...snapshots.keys()].sort());
  }

  const names = Object.keys(steps) as (keyof typeof steps)[];
  for (let step = 0; step < options.steps; step++) {
    const name = some(names) ?? 'create';
    options.onStep?.(step, name);
    const touched = await steps[name]();
    if (touched !== undefined) await compareContents(touched);
    await compareHost();
  }

  options.onStep?.(options.steps, 'the end');
  for (const [id, sandbox] of [...sandboxes]) {
    if (sandbox.state === 'paused') await wake(id, sandbox, 'full');
    await compareContents(id);
    await subject.kill(id);
    sandboxes.delete(id);
  }
  for (const name of [...snapshots.keys()]) {
    expect('removal of a snapshot', await subject.removeSnapshot(name), 'removed');
    snapshots.delete(name);
  }
  await compareHost();
}
