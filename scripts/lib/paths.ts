import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Places of a checkout; everything the scripts write is below `state`, which git ignores. */
export interface RepositoryPaths {
  readonly root: string;
  /** `.aenv`: toolchain, artefacts, caches, stamps. */
  readonly state: string;
  readonly toolchain: string;
  /** Finished, content-addressed files and `artifacts.json`; the default of the configuration key `deps_path`. */
  readonly artifacts: string;
  /** One stamp per finished set-up step. */
  readonly stamps: string;
  /** Half-finished work; removed whenever its step starts again. */
  readonly scratch: string;
  readonly log: string;
}

export function repositoryPaths(root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))): RepositoryPaths {
  const state = join(root, '.aenv');
  return {
    root,
    state,
    toolchain: join(state, 'toolchain'),
    artifacts: join(state, 'artifacts'),
    stamps: join(state, 'stamps'),
    scratch: join(state, 'scratch'),
    log: join(state, 'setup.log'),
  };
}
