import { type FSWatcher, watch } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { contains, type Log, parseAddress, parseCidr } from '@agentenv/core';

/** Where DNS queries of sandboxes go. `loopback`: the host only has a resolver on its own loopback. */
export type ResolverChoice =
  | { readonly kind: 'server'; readonly address: string }
  | { readonly kind: 'loopback'; readonly address: string }
  | { readonly kind: 'none' };

/** In the order they are asked (contract agentenv.md section 13). */
export const RESOLVER_FILES: readonly string[] = ['/run/systemd/resolve/resolv.conf', '/etc/resolv.conf'];

const LOOPBACK = parseCidr('127.0.0.0/8');

/** IPv4 name servers of a resolv.conf, in order; unspecified addresses are none. */
export function nameServers(text: string): readonly string[] {
  const servers: string[] = [];
  for (const line of text.split('\n')) {
    const [keyword, server = ''] = line.trim().split(/\s+/);
    const address = keyword === 'nameserver' ? parseAddress(server) : undefined;
    if (address?.family === 4 && address.value !== 0n) servers.push(server);
  }
  return servers;
}

/** The first IPv4 server that is not a loopback address, over all files in order. */
export function chooseResolver(texts: readonly string[]): ResolverChoice {
  const servers = texts.flatMap(nameServers);
  const remote = servers.find((server) => !isLoopback(server));
  if (remote !== undefined) return { kind: 'server', address: remote };
  const [local] = servers;
  return local === undefined ? { kind: 'none' } : { kind: 'loopback', address: local };
}

function isLoopback(server: string): boolean {
  const address = parseAddress(server);
  return address !== undefined && LOOPBACK !== undefined && contains(LOOPBACK, address);
}

export interface ResolverSource extends Disposable {
  read(): Promise<ResolverChoice>;
}

export interface HostResolversOptions {
  readonly files?: readonly string[];
  /** Something about the files changed; `read` again. */
  readonly onChange: () => void;
  readonly log: Log;
}

/** The host's own resolvers, read from its files and watched. */
export function createHostResolvers({ files = RESOLVER_FILES, onChange, log }: HostResolversOptions): ResolverSource {
  const watchers: FSWatcher[] = [];
  for (const file of files) {
    try {
      // The directory, because the file is usually replaced by a rename.
      const watcher = watch(dirname(file), { persistent: false }, (_event, name) => {
        if (name === null || name === basename(file)) onChange();
      });
      watcher.on('error', (error) => log.debug({ file, error }, 'resolver file is not watched any more'));
      watchers.push(watcher);
    } catch (error) {
      // Most hosts have only one of the files; the other directory does not exist.
      log.debug({ file, error }, 'resolver file is not watched');
    }
  }
  return {
    async read() {
      const texts = await Promise.all(files.map((file) => readFile(file, 'utf8').catch(() => '')));
      return chooseResolver(texts);
    },
    [Symbol.dispose]() {
      for (const watcher of watchers) watcher.close();
    },
  };
}

/** Servers named by the operator. */
export function createFixedResolvers(servers: readonly string[]): ResolverSource {
  return {
    read: async () => chooseResolver([servers.map((server) => `nameserver ${server}`).join('\n')]),
    [Symbol.dispose]() {},
  };
}
