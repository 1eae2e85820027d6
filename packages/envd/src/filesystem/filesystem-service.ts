import { normalize } from 'node:path/posix';
import type { Agent, GuestUser } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import type { Filesystem } from '@agentenv/protocol/filesystem';
import type { HandlerContext, ServiceImpl } from '@connectrpc/connect';
import { fileFailure } from '../files/file-failure.ts';
import { resolveGuestPath } from '../files/guest-path.ts';
import { CALL_VALUES } from '../rpc/call-values.ts';
import { lookupRpcUser } from '../rpc/rpc-user.ts';
import { toEntryInfo } from './entry-info.ts';
import { encodeListing, PAGE_ENTRIES, pagesOf } from './listing.ts';

/** Mode of directories that are made, bits. */
const DIRECTORY_MODE = 0o755;
/** No path has more levels. */
const MAX_DEPTH = 0xffff;
/** "Cross-device link". */
const EXDEV = 18;

export interface FilesystemServiceDeps {
  readonly agent: Agent;
  readonly defaultUser: string;
  readonly defaultWorkdir: string | undefined;
}

/** How the calls read a path. */
export interface PathResolver {
  /** The absolute path a request means, for the user of its call. */
  resolvePath(path: string, context: HandlerContext): Promise<string>;
}

type Unary = Pick<ServiceImpl<typeof Filesystem>, 'stat' | 'makeDir' | 'move' | 'listDir' | 'remove'>;

/** The calls of `filesystem.Filesystem` that change or read the tree once (contract e2b.md section 9.3). */
export function createFilesystemService(deps: FilesystemServiceDeps): Unary & PathResolver {
  const { agent, defaultWorkdir } = deps;

  async function userOf(context: HandlerContext): Promise<GuestUser> {
    const name = context.values.get(CALL_VALUES).user ?? deps.defaultUser;
    return await lookupRpcUser(agent, name, context.signal);
  }

  function resolve(path: string, user: GuestUser): string {
    return resolveGuestPath(path, { home: user.home, defaultWorkdir });
  }

  async function resolvePath(path: string, context: HandlerContext): Promise<string> {
    return resolve(path, await userOf(context));
  }

  return {
    resolvePath,

    async stat(request, context) {
      const path = await resolvePath(request.path, context);
      const entry = await agent.stat(path, context.signal).catch(failure({ missing: `file not found: ${path}` }));
      return { entry: toEntryInfo(entry) };
    },

    async listDir(request, context) {
      const path = await resolvePath(request.path, context);
      const depth = Math.min(Math.max(request.depth, 1), MAX_DEPTH);
      const first = await agent
        .listDir(path, { depth, max: PAGE_ENTRIES }, context.signal)
        .catch(failure({ missing: `directory not found: ${path}`, kind: `path is not a directory: ${path}` }));
      if (first.next === undefined) return { entries: first.entries.map(toEntryInfo) };
      const { codec, answered, answerWith } = context.values.get(CALL_VALUES);
      answerWith(encodeListing(codec, pagesOf(agent, path, depth, first, answered)));
      return {};
    },

    async makeDir(request, context) {
      const user = await userOf(context);
      const path = resolve(request.path, user);
      const owner = { uid: user.uid, gid: user.gid, mode: DIRECTORY_MODE };
      const { created } = await agent
        .makeDir(path, owner, context.signal)
        .catch(failure({ kind: `path already exists but it is not a directory: ${path}` }));
      if (!created) throw new PlatformError('already_exists', `directory already exists: ${path}`);
      return { entry: toEntryInfo(await agent.stat(path, context.signal)) };
    },

    async move(request, context) {
      const user = await userOf(context);
      const source = resolve(request.source, user);
      const destination = resolve(request.destination, user);
      await agent
        .rename(source, destination, { uid: user.uid, gid: user.gid }, context.signal)
        .catch(async (caught: unknown) => {
          throw await moveError(caught, source, destination, () => agent.stat(source, context.signal));
        });
      return { entry: toEntryInfo(await agent.stat(destination, context.signal)) };
    },

    async remove(request, context) {
      const path = await resolvePath(request.path, context);
      if (normalize(path) === '/') throw new PlatformError('invalid_argument', 'the root directory cannot be removed');
      await agent.remove(path, context.signal).catch(failure({}));
      return {};
    },
  };
}

/** Puts the guest's refusal in the words of the call; what it does not name passes unchanged. */
function failure(words: { readonly missing?: string; readonly kind?: string }): (caught: unknown) => never {
  return (caught) => {
    const error = PlatformError.fromUnknown(caught);
    switch (error.details.status) {
      case 'NOT_FOUND':
        throw new PlatformError('not_found', words.missing ?? error.message, { cause: error });
      case 'NOT_DIRECTORY':
      case 'EXISTS':
        if (words.kind !== undefined) throw new PlatformError('invalid_argument', words.kind, { cause: error });
        throw new PlatformError('not_found', words.missing ?? error.message, { cause: error });
      default:
        throw fileFailure(error);
    }
  };
}

/** Why a rename failed, naming whichever end it is about. */
async function moveError(
  caught: unknown,
  source: string,
  destination: string,
  statSource: () => Promise<unknown>,
): Promise<PlatformError> {
  const error = PlatformError.fromUnknown(caught);
  const told = (code: PlatformError['code'], message: string) => new PlatformError(code, message, { cause: error });
  switch (error.details.status) {
    case 'NOT_FOUND':
      return told('not_found', `source file not found: ${source}`);
    case 'NOT_DIRECTORY':
      return await statSource().then(
        () => told('invalid_argument', `a directory is needed where a file is: ${destination}`),
        () => told('not_found', `source file not found: ${source}`),
      );
    case 'EXISTS':
      return told('already_exists', `destination is a directory that is not empty: ${destination}`);
    case 'IS_DIRECTORY':
      return told('invalid_argument', `destination is a directory: ${destination}`);
    case 'INVALID':
      return told('invalid_argument', `${source} cannot be moved to ${destination}`);
    case 'IO':
      if (error.details.errno !== EXDEV) return fileFailure(error);
      return told('invalid_argument', `destination is on another file system than ${source}: ${destination}`);
    default:
      return fileFailure(error);
  }
}
