import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Exec } from '../exec.ts';
import { type NamespaceProgram, startNamespaceProgram } from './namespace-program.ts';

/** Hosts of the fake internet; each answers echo, HTTP and DNS (see `internet-server.ts`). */
export const INTERNET = {
  web: '198.51.100.7',
  other: '198.51.100.8',
  /** In the same /24 as `web`, taken for an address of the host by some tests. */
  hostPublic: '198.51.100.99',
  dns: '198.51.100.53',
  web6: '2001:db8:1::7',
  other6: '2001:db8:1::8',
  /** Addresses no sandbox may reach, present so that reaching them would succeed. */
  private: ['10.99.0.1', '100.64.0.1', '169.254.169.254', '172.16.5.5', '192.168.77.1', 'fd99::1', '64:ff9b::a63:1'],
} as const;

const ROUTER = {
  inside4: '203.0.113.1',
  outside4: '203.0.113.254',
  inside6: '2001:db8:ffff::1',
  outside6: '2001:db8:ffff::fe',
};
const DEADLINE_MS = 15_000;

export interface Arrival {
  readonly protocol: 'tcp' | 'udp';
  readonly local: string;
  readonly port: number;
  readonly remote: string;
}

/** A namespace that plays the internet behind one other namespace. */
export interface FakeInternet extends AsyncDisposable {
  /** The address under which everything from inside appears. */
  readonly seenAs: { readonly ipv4: string; readonly ipv6: string };
  /** What arrived since the last call. */
  arrivals(): Promise<readonly Arrival[]>;
}

/** Makes an empty namespace kept by the file `path`; the directory is created. */
export async function createTestNamespace(
  exec: Exec,
  path: string,
  commands: readonly string[],
): Promise<AsyncDisposable> {
  await mkdir(join(path, '..'), { recursive: true });
  const script = ': > "$1"; unshare --net="$1" ip -batch -';
  const stdin = `${['link set lo up', ...commands].join('\n')}\n`;
  await exec({ argv: ['sh', '-ec', script, 'sh', path], stdin, deadlineMs: DEADLINE_MS });
  return {
    async [Symbol.asyncDispose]() {
      await exec({ argv: ['sh', '-ec', 'umount -l "$1"; rm -f "$1"', 'sh', path], deadlineMs: DEADLINE_MS });
    },
  };
}

/** Runs `ip -batch` lines inside the namespace at `path`. */
export async function ipInNamespace(exec: Exec, path: string, commands: readonly string[]): Promise<void> {
  const argv = ['nsenter', `--net=${path}`, 'ip', '-batch', '-'] as const;
  await exec({ argv: [...argv], stdin: `${commands.join('\n')}\n`, deadlineMs: DEADLINE_MS });
}

/**
 * Puts a fake internet behind the namespace at `behind` (a gateway, or a namespace that plays the host) and makes it the
 * default route there. Needs root; touches nothing but its own namespace and an interface `wan0` in `behind`.
 */
export async function createFakeInternet({
  exec,
  path,
  behind,
}: {
  readonly exec: Exec;
  /** File of the internet's namespace. */
  readonly path: string;
  readonly behind: string;
}): Promise<FakeInternet> {
  const hosts = [INTERNET.web, INTERNET.other, INTERNET.hostPublic, INTERNET.dns, INTERNET.web6, INTERNET.other6];
  const addresses = [...hosts, ...INTERNET.private];
  const stack = new AsyncDisposableStack();
  try {
    stack.use(
      await createTestNamespace(exec, path, [
        ...addresses.map((address) => `addr add ${address}/${address.includes(':') ? 128 : 32} dev lo`),
        `link add wan0 type veth peer name wan0 netns ${behind}`,
        `addr add ${ROUTER.outside4}/24 dev wan0`,
        `addr add ${ROUTER.outside6}/64 dev wan0 nodad`,
        'link set wan0 up',
      ]),
    );
    await ipInNamespace(exec, behind, [
      `addr add ${ROUTER.inside4}/24 dev wan0`,
      `addr add ${ROUTER.inside6}/64 dev wan0 nodad`,
      'link set wan0 up',
      `route add default via ${ROUTER.outside4}`,
      `route add default via ${ROUTER.outside6}`,
    ]);
    const server: NamespaceProgram = stack.use(await startNamespaceProgram(path, './internet-server.ts', addresses));
    const owned = stack.move();
    return {
      seenAs: { ipv4: ROUTER.inside4, ipv6: ROUTER.inside6 },
      arrivals: () => server.request<readonly Arrival[]>({ op: 'seen' }),
      [Symbol.asyncDispose]: () => owned.disposeAsync(),
    };
  } catch (error) {
    await stack.disposeAsync();
    throw error;
  }
}
