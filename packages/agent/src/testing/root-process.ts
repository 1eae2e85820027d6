import type { SpawnRequest } from '../agent.ts';

/** A process with everything at its simplest: root, in /, no environment, no stdin. */
export function rootProcess(argv: readonly string[], more: Partial<SpawnRequest> = {}): SpawnRequest {
  return {
    user: 'root',
    argv,
    env: {},
    cwd: '/',
    defaultCwd: '/',
    stdin: false,
    tag: '',
    config: new Uint8Array(),
    killAfterMs: 0,
    ...more,
  };
}
