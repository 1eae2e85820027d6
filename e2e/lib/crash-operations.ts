import { Sandbox } from 'e2b';
import type { TestServer } from './server.ts';

/** What the owner of a sandbox has been promised. */
export interface Owned {
  sandbox: Sandbox;
  state: 'running' | 'paused';
  /** Of a paused one: whether its memory is there. */
  memory: 'kept' | 'lost';
  /** Of a running one. */
  endAt: number;
  readonly processes: Set<number>;
  /** Contents by name; those that were synced in the guest are also there after a boot. */
  readonly files: Map<string, { readonly text: string; readonly synced: boolean }>;
}

/** What is made of a snapshot has this. */
export type Kept = Pick<Owned, 'files' | 'processes'>;

/** What an operation may have changed when its answer never came. */
export interface Operation {
  readonly name: string;
  /** Whose state or deadline it changes. */
  readonly target: Owned | undefined;
  /** Resolves with the answer, which is the promise. */
  readonly run: () => Promise<void>;
  /** Notes in the model what holds once it was done, whether it was answered or not. */
  readonly done: () => void;
  /** States the target may be in when there was no answer. */
  readonly possible: readonly ('running' | 'paused' | 'gone')[];
  /** Its capture can be watched. */
  readonly captures: boolean;
}

/** What operations change, and what they need for it. */
export interface CrashModel {
  readonly server: TestServer;
  readonly owned: Map<string, Owned>;
  readonly snapshots: Map<string, Kept>;
  /** The model of a sandbox that was just made, of another one when it is a copy. */
  take(sandbox: Sandbox, from?: Kept): Promise<Owned>;
  /** A new sandbox with a process and a file. */
  furnish(): Promise<void>;
  /** Writes a file of a new name. */
  write(target: Owned): Promise<void>;
}

export const TIMEOUT_MS = 3_600_000;
const NOTHING = (): void => undefined;
const PLAIN = { target: undefined, done: NOTHING, possible: [], captures: false } as const;

/** What a capture that begins now has at least. */
function copyOf({ files, processes }: Kept): Kept {
  return { files: new Map(files), processes: new Set(processes) };
}

/** A boot keeps what is on the disk for certain. */
export function forgetMemory({ processes, files }: Kept): void {
  processes.clear();
  for (const [name, { synced }] of files) if (!synced) files.delete(name);
}

/** Everything that can be done to a running sandbox, each as often as it should be chosen. */
export function operationsOnRunning(model: CrashModel, target: Owned): readonly Operation[] {
  const { server, owned, snapshots } = model;
  const { sandbox } = target;
  const pause: Operation = {
    ...{ name: 'pause', target, possible: ['running', 'paused'], captures: true },
    run: async () => void (await sandbox.pause()),
    done: () => void Object.assign(target, { state: 'paused', memory: 'kept' }),
  };
  const pauseOfDisk: Operation = {
    ...{ name: 'pause without memory', target, possible: ['running', 'paused'], captures: true },
    run: async () => void (await sandbox.pause({ keepMemory: false })),
    done() {
      // The platform has synced its file system itself.
      target.processes.clear();
      Object.assign(target, { state: 'paused', memory: 'lost' });
    },
  };
  const snapshot: Operation = {
    ...{ ...PLAIN, name: 'snapshot', captures: true },
    async run() {
      const had = copyOf(target);
      snapshots.set((await sandbox.createSnapshot()).snapshotId, had);
    },
  };
  const fork: Operation = {
    ...{ ...PLAIN, name: 'fork', captures: true },
    async run() {
      const had = copyOf(target);
      for (const child of await sandbox.fork({ count: 1, timeoutMs: TIMEOUT_MS })) {
        if (child instanceof Error) throw child;
        owned.set(child.sandboxId, await model.take(child, had));
      }
    },
  };
  const timeout: Operation = {
    ...{ ...PLAIN, name: 'timeout', target, possible: ['running'] },
    async run() {
      await sandbox.setTimeout(TIMEOUT_MS - 60_000);
      target.endAt = (await sandbox.getInfo()).endAt.getTime();
    },
  };
  const write: Operation = { ...PLAIN, name: 'write', run: () => model.write(target) };
  const kill: Operation = {
    ...{ name: 'kill', target, possible: ['running', 'gone'], captures: false },
    run: async () => void (await Sandbox.kill(sandbox.sandboxId, server.sdk)),
    done: () => void owned.delete(sandbox.sandboxId),
  };
  return [pause, pause, pause, pauseOfDisk, snapshot, snapshot, fork, fork, timeout, write, kill];
}

/** The same of a paused one. */
export function operationsOnPaused({ server }: CrashModel, target: Owned): readonly Operation[] {
  const { sandboxId } = target.sandbox;
  const connect = (name: string, onResume: 'restore' | 'reboot'): Operation => ({
    ...{ name, target, possible: ['running', 'paused'], captures: false },
    async run() {
      target.sandbox = await Sandbox.connect(sandboxId, { ...server.sdk, timeoutMs: TIMEOUT_MS, onResume });
      target.endAt = (await target.sandbox.getInfo()).endAt.getTime();
    },
    done() {
      target.state = 'running';
      if (onResume === 'reboot') forgetMemory(target);
    },
  });
  if (target.memory === 'lost') return [connect('boot', 'restore')];
  const resume = connect('resume', 'restore');
  return [resume, resume, resume, connect('reboot', 'reboot')];
}

/** A new sandbox. */
export function creation(model: CrashModel): Operation {
  return { ...PLAIN, name: 'create', run: () => model.furnish() };
}
