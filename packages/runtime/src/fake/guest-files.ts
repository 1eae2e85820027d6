import type { EntryType, GuestEntry, WatchEvent } from '@agentenv/agent';
import { guestError } from './guest-error.ts';

/** One immutable file or directory; a change replaces the node, so clones of a guest share everything unchanged. */
export interface FileNode {
  readonly type: Extract<EntryType, 'file' | 'directory'>;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtimeNs: bigint;
  readonly inode: bigint;
  readonly content: Uint8Array;
  readonly xattrs: ReadonlyMap<string, Uint8Array>;
}

export interface Ownership {
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
}

export interface FileWrite extends Ownership {
  readonly path: string;
  readonly content: Uint8Array;
  readonly xattrs: ReadonlyMap<string, Uint8Array>;
}

const ROOT: Ownership = { uid: 0, gid: 0, mode: 0o755 };
const NOTHING = new Uint8Array(0);
const NO_XATTRS: ReadonlyMap<string, Uint8Array> = new Map();
const UMASK = 0o022;

/** inotify bits, as the guest agent reports them. */
export const WATCH_MASK = {
  closeWrite: 0x8,
  movedFrom: 0x40,
  movedTo: 0x80,
  create: 0x100,
  delete: 0x200,
} as const;

/** An absolute path without empty, `.` and `..` parts. Throws `invalid_argument` for a relative one. */
export function normalisePath(path: string): string {
  if (!path.startsWith('/')) throw guestError('INVALID', path);
  const parts: string[] = [];
  for (const part of path.split('/')) {
    if (part === '..') parts.pop();
    else if (part !== '' && part !== '.') parts.push(part);
  }
  return `/${parts.join('/')}`;
}

function parentOf(path: string): string {
  return path.slice(0, Math.max(1, path.lastIndexOf('/')));
}

function isInside(path: string, directory: string): boolean {
  return path.startsWith(directory === '/' ? '/' : `${directory}/`) && path !== '/';
}

interface Watcher {
  readonly directory: string;
  readonly recursive: boolean;
  readonly onEvent: (event: WatchEvent) => void;
}

/** The files of a fake guest: regular files and directories with owners, in memory. */
export class GuestFiles {
  readonly #nodes: Map<string, FileNode>;
  readonly #watchers = new Set<Watcher>();
  readonly #nowMs: () => number;
  #nextInode: bigint;

  constructor(nowMs: () => number, nodes?: ReadonlyMap<string, FileNode>) {
    this.#nowMs = nowMs;
    this.#nodes = new Map(nodes);
    this.#nextInode = 2n;
    for (const node of this.#nodes.values()) {
      if (node.inode >= this.#nextInode) this.#nextInode = node.inode + 1n;
    }
    if (!this.#nodes.has('/')) this.#nodes.set('/', this.#node('directory', ROOT, NOTHING));
  }

  /** A copy for a snapshot; nodes are immutable and shared. */
  nodes(): ReadonlyMap<string, FileNode> {
    return new Map(this.#nodes);
  }

  node(path: string): FileNode {
    const node = this.#nodes.get(normalisePath(path));
    if (node === undefined) throw guestError('NOT_FOUND', path);
    return node;
  }

  has(path: string): boolean {
    return this.#nodes.has(normalisePath(path));
  }

  /** The content of a regular file. */
  content(path: string): Uint8Array {
    const node = this.node(path);
    if (node.type === 'directory') throw guestError('IS_DIRECTORY', path);
    return node.content;
  }

  text(path: string): string {
    return new TextDecoder().decode(this.content(path));
  }

  /** Paths below `directory`, pre-order, siblings bytewise by name, at most `depth` levels deep. */
  below(directory: string, depth: number): string[] {
    const root = normalisePath(directory);
    if (this.node(root).type !== 'directory') {
      throw guestError('NOT_DIRECTORY', directory);
    }
    const skip = root === '/' ? 0 : root.split('/').length - 1;
    const split = [...this.#nodes.keys()]
      .filter((path) => isInside(path, root))
      .map((path) => path.slice(1).split('/'))
      .filter((parts) => parts.length - skip <= depth);
    split.sort(compareParts);
    return split.map((parts) => `/${parts.join('/')}`);
  }

  makeDir(path: string, owner: Ownership): { readonly created: boolean } {
    const target = normalisePath(path);
    const existing = this.#nodes.get(target);
    if (existing?.type === 'directory') return { created: false };
    if (existing !== undefined) throw guestError('EXISTS', path);
    this.#ensureParent(target, owner);
    this.#nodes.set(target, this.#node('directory', owner, NOTHING));
    this.#notify(target, WATCH_MASK.create);
    return { created: true };
  }

  write(request: FileWrite): void {
    const target = normalisePath(request.path);
    const existing = this.#nodes.get(target);
    if (existing?.type === 'directory') throw guestError('IS_DIRECTORY', request.path);
    this.#ensureParent(target, { uid: request.uid, gid: request.gid, mode: 0o755 });
    const fresh = this.#node('file', { ...request, mode: request.mode & ~UMASK }, request.content);
    // One that is there stays what it is, but for its content, its owner and what comes with the request.
    const kept = existing === undefined ? {} : { inode: existing.inode, mode: existing.mode };
    this.#nodes.set(target, { ...fresh, ...kept, xattrs: request.xattrs });
    if (existing === undefined) this.#notify(target, WATCH_MASK.create);
    this.#notify(target, WATCH_MASK.closeWrite);
  }

  rename(source: string, destination: string, owner: { readonly uid: number; readonly gid: number }): void {
    const from = normalisePath(source);
    const to = normalisePath(destination);
    const node = this.node(from);
    if (from === to) return;
    if (isInside(to, from)) throw guestError('INVALID', to);
    const target = this.#nodes.get(to);
    if (target !== undefined && target.type !== node.type) {
      throw guestError(target.type === 'directory' ? 'IS_DIRECTORY' : 'NOT_DIRECTORY', destination);
    }
    if (target?.type === 'directory' && this.below(to, 1).length > 0) {
      throw guestError('EXISTS', destination);
    }
    this.#ensureParent(to, { ...owner, mode: 0o755 });
    for (const path of [from, ...this.#inside(from)]) {
      const moved = this.#nodes.get(path);
      this.#nodes.delete(path);
      if (moved !== undefined) this.#nodes.set(to + path.slice(from.length), moved);
    }
    this.#notify(from, WATCH_MASK.movedFrom);
    this.#notify(to, WATCH_MASK.movedTo);
  }

  remove(path: string): { readonly removed: boolean } {
    const target = normalisePath(path);
    if (!this.#nodes.has(target)) return { removed: false };
    if (target === '/') throw guestError('PERMISSION', target);
    for (const inner of this.#inside(target)) this.#nodes.delete(inner);
    this.#nodes.delete(target);
    this.#notify(target, WATCH_MASK.delete);
    return { removed: true };
  }

  watch(path: string, recursive: boolean, onEvent: (event: WatchEvent) => void): Disposable {
    const directory = normalisePath(path);
    if (this.node(directory).type !== 'directory') {
      throw guestError('NOT_DIRECTORY', path);
    }
    const watcher: Watcher = { directory, recursive, onEvent };
    this.#watchers.add(watcher);
    return {
      [Symbol.dispose]: () => {
        this.#watchers.delete(watcher);
      },
    };
  }

  /** Watchers belong to one generation. */
  dropWatchers(): void {
    this.#watchers.clear();
  }

  entry(path: string, nameOf: (kind: 'user' | 'group', id: number) => string): GuestEntry {
    const node = this.node(path);
    return {
      path: normalisePath(path),
      type: node.type,
      size: BigInt(node.content.byteLength),
      mode: node.mode,
      uid: node.uid,
      gid: node.gid,
      owner: nameOf('user', node.uid),
      group: nameOf('group', node.gid),
      mtimeNs: node.mtimeNs,
      link: undefined,
      inode: node.inode,
      xattrs: node.xattrs,
    };
  }

  #inside(directory: string): string[] {
    return [...this.#nodes.keys()].filter((path) => isInside(path, directory));
  }

  #node(type: FileNode['type'], owner: Ownership, content: Uint8Array): FileNode {
    const mtimeNs = BigInt(Math.trunc(this.#nowMs())) * 1_000_000n;
    const { uid, gid, mode } = owner;
    return { type, mode, uid, gid, mtimeNs, inode: this.#nextInode++, content, xattrs: NO_XATTRS };
  }

  #ensureParent(path: string, owner: Ownership): void {
    const parent = parentOf(path);
    const node = this.#nodes.get(parent);
    if (node?.type === 'file') throw guestError('NOT_DIRECTORY', parent);
    if (node === undefined) this.makeDir(parent, owner);
  }

  #notify(path: string, mask: number): void {
    const isDirectory = this.#nodes.get(path)?.type === 'directory';
    for (const { directory, recursive, onEvent } of this.#watchers) {
      if (!isInside(path, directory)) continue;
      if (!recursive && parentOf(path) !== directory) continue;
      const relative = path.slice(directory === '/' ? 1 : directory.length + 1);
      onEvent({ path: relative, mask, cookie: 0, isDirectory });
    }
  }
}

function compareParts(left: readonly string[], right: readonly string[]): number {
  const shared = Math.min(left.length, right.length);
  for (let index = 0; index < shared; index++) {
    const order = Buffer.compare(Buffer.from(left[index] ?? ''), Buffer.from(right[index] ?? ''));
    if (order !== 0) return order;
  }
  return left.length - right.length;
}
