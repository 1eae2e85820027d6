import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { commandLines, engineNames, engineTag, ledgerText } from './host.ts';
import type { TestServer } from './server.ts';
import { waitUntil } from './wait.ts';

/** How long after its first answer a server may still remove things, milliseconds. */
const SETTLE_MS = 5_000;
/** Namespaces a server keeps ready beside those in use, as it is configured unless told otherwise, and the gateway. */
const NAMESPACES_IN_ADVANCE = 16 + 1;

const entries = (directory: string): string[] => {
  try {
    return readdirSync(directory);
  } catch {
    // It is made when it is needed.
    return [];
  }
};

/** The captures in the home of a server. */
export function captureNames(server: TestServer): string[] {
  return entries(join(server.home, 'snapshots'));
}

/** Names of the control groups of a server's engines. */
function groups(server: TestServer): string[] {
  return ['cpu', 'memory', '.']
    .flatMap((controller) => entries(join('/sys/fs/cgroup', controller, 'aenv')))
    .filter((name) => name.includes(engineTag(server)));
}

/** Network namespaces that are mounted in the runtime directory of a server. */
function namespaces(server: TestServer): string[] {
  return readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '')
    .filter((path) => path.startsWith(`${server.runtime}/`));
}

/** What exists on the host because of this server and belongs to no engine and no record of the ledger, one line each. */
export function orphans(server: TestServer): string[] {
  const named = engineNames(server);
  const alive = new Set(named.values());
  const short = new Set([...alive].map((name) => name.slice(name.lastIndexOf('-') + 1)));
  const record = ledgerText(server);
  const of = (kind: string, names: readonly string[], isOwned: (name: string) => boolean): string[] =>
    names.filter((name) => !isOwned(name)).map((name) => `${kind} ${name}`);
  const mounted = namespaces(server);
  const slots = mounted.length - named.size;
  return [
    ...of('capture', captureNames(server), (name) => record.includes(name)),
    ...of('disk', entries(join(server.home, 'qemu/instances')), (name) => short.has(name)),
    ...of('layers', entries(join(server.home, 'qemu/layers')), (name) => short.has(name)),
    ...of('sockets', entries(join(server.runtime, 'i')), (name) => short.has(name)),
    ...of('control group', groups(server), (name) => alive.has(name)),
    ...of('unfinished template', entries(join(server.home, 'qemu/templates')), (name) => !name.startsWith('.')),
    ...of('namespace', entries(join(server.runtime, 'netns')), (name) => mounted.some((path) => path.endsWith(name))),
    ...(slots <= NAMESPACES_IN_ADVANCE ? [] : [`${slots} namespaces`]),
    ...otherProcesses(server, named),
  ];
}

/** Processes that name a directory of the server: neither its engines nor itself. */
function otherProcesses(server: TestServer, named: ReadonlyMap<number, string>): string[] {
  return [...commandLines()]
    .filter(([pid, line]) => [server.home, server.runtime].some((path) => line.includes(path)) && !named.has(pid))
    .map(([pid, line]) => `process ${pid} ${line.slice(0, 200)}`);
}

/** Waits until a server that has just answered has put everything in order. */
export async function waitForNoOrphans(server: TestServer): Promise<void> {
  await waitUntil(() => orphans(server).length === 0, {
    timeout: SETTLE_MS,
    what: () => `nothing to be left behind, but there is ${orphans(server).join(', ')}`,
  });
}

/** What a server that has stopped without pausing anything may not leave: everything but its home. */
export function remainsOfStopped(server: TestServer): string[] {
  const named = engineNames(server);
  return [
    ...[...named].map(([pid, name]) => `engine ${pid} ${name}`),
    ...entries(server.runtime).map((name) => `runtime ${name}`),
    ...namespaces(server).map((path) => `mount ${path}`),
    ...groups(server).map((name) => `control group ${name}`),
    ...entries(join(server.home, 'qemu/instances')).map((name) => `disk ${name}`),
    ...entries(join(server.home, 'qemu/layers')).map((name) => `layers ${name}`),
    ...otherProcesses(server, named),
  ];
}

/**
 * How far a capture had come when its server died, as its directory and the ledger tell: `before` are the captures there
 * were when the operation began.
 */
export function stageOfCapture(server: TestServer, before: readonly string[]): string {
  const record = ledgerText(server);
  const [name] = captureNames(server).filter((entry) => !before.includes(entry));
  if (name === undefined) return 'without a directory';
  if (record.includes(name)) return 'recorded';
  const files = entries(join(server.home, 'snapshots', name)).toSorted();
  if (files.includes('manifest.json')) return 'complete, not recorded';
  return files.length === 0 ? 'empty' : `with ${files.map((file) => file.replace(/-\d+\./, '-N.')).join(', ')}`;
}
