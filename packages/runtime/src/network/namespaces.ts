import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Exec } from '../exec.ts';
import { GATEWAY_MAC, GUEST_ADDRESSING, type SlotAddresses } from './addressing.ts';
import { gatewayRuleset, SLOT_LINK_PREFIX, slotRuleset, TAP, UPLINK_OF_SLOT } from './ruleset.ts';

/** Milliseconds any one of these commands may take on a busy host. */
const DEADLINE_MS = 15_000;

/**
 * A network namespace kept by a bind mount at `$1`, with forwarding on inside it and nowhere else. `$2` are its links
 * (`ip -batch`), `$3` its rules (`nft -f`).
 */
const CREATE = `
: > "$1"
unshare --net="$1" sh -ec '
  cd /proc/sys/net
  for key in ipv6/conf/default/accept_ra ipv6/conf/default/accept_dad ipv6/conf/default/autoconf; do echo 0 > $key; done
  echo 1 > ipv4/ip_forward
  echo 1 > ipv6/conf/all/forwarding
  printf %s "$2" | nft -f -
  printf %s "$1" | ip -batch -
' sh "$2" "$3"
`;

/** The arguments are namespace files. Lazy, because a process inside may still be on its way out. */
const DELETE = `
for file; do
  if mountpoint -q "$file"; then umount -l "$file"; fi
done
rm -f "$@"
`;

export interface SlotSpec {
  readonly index: number;
  readonly path: string;
  readonly uid: number;
  readonly addresses: SlotAddresses;
  /** `ip -batch` lines that make the device `TAP`; the default is a tap owned by `uid`. */
  readonly device: readonly string[];
  /** The policy transaction a fresh slot starts with. */
  readonly rules: string;
}

/** Creates, deletes and changes the namespaces of one server; their files are `<directory>/<prefix>-NAME`. */
export interface Namespaces {
  path(name: string): string;
  /** Files of this prefix, whoever made them. */
  leftovers(): Promise<readonly string[]>;
  createGateway(): Promise<string>;
  createSlot(spec: SlotSpec): Promise<void>;
  deleteSlot(spec: Pick<SlotSpec, 'index' | 'path'>): Promise<void>;
  deleteFiles(paths: readonly string[]): Promise<void>;
  /** One nft transaction inside the namespace at `path`. */
  nft(path: string, transaction: string, signal?: AbortSignal): Promise<void>;
}

/** Default device of a slot: a persistent tap that its uid may attach to. */
export function tapDevice(uid: number): readonly string[] {
  return [`tuntap add dev ${TAP} mode tap user ${uid} group ${uid}`];
}

function slotLinks({ index, addresses, device }: SlotSpec, gatewayPath: string): string {
  const { gatewayIpv4, gatewayIpv6, slotIpv4, slotIpv6, hostInteractionIp } = addresses;
  const { ipv4, ipv6, mac, gatewayIpv4: inside4, gatewayIpv6: inside6 } = GUEST_ADDRESSING;
  const [guest4 = '', length4 = ''] = ipv4.split('/');
  const [guest6 = '', length6 = ''] = ipv6.split('/');
  return lines([
    'link set lo up',
    `link add ${UPLINK_OF_SLOT} type veth peer name ${linkName(index)} netns ${gatewayPath}`,
    `addr add ${slotIpv4}/31 dev ${UPLINK_OF_SLOT}`,
    `addr add ${slotIpv6}/127 dev ${UPLINK_OF_SLOT} nodad`,
    `addr add ${hostInteractionIp}/32 dev ${UPLINK_OF_SLOT}`,
    `link set ${UPLINK_OF_SLOT} up`,
    `route add default via ${gatewayIpv4}`,
    `route add default via ${gatewayIpv6}`,
    ...device,
    `link set ${TAP} address ${GATEWAY_MAC} up`,
    `addr add ${inside4}/${length4} dev ${TAP}`,
    `addr add ${inside6}/${length6} dev ${TAP} nodad`,
    // A restored guest answers from its first packet on; nobody has to ask for its hardware address.
    `neigh replace ${guest4} lladdr ${mac} nud permanent dev ${TAP}`,
    `neigh replace ${guest6} lladdr ${mac} nud permanent dev ${TAP}`,
  ]);
}

function linkName(index: number): string {
  return `${SLOT_LINK_PREFIX}${index}`;
}

function lines(commands: readonly string[]): string {
  return `${commands.join('\n')}\n`;
}

export function createNamespaces({
  directory,
  prefix,
  exec,
}: {
  readonly directory: string;
  readonly prefix: string;
  readonly exec: Exec;
}): Namespaces {
  const path = (name: string) => join(directory, `${prefix}-${name}`);
  const gatewayPath = path('gateway');

  async function script(text: string, args: readonly string[], stdin = ''): Promise<void> {
    await exec({ argv: ['sh', '-ec', text, 'sh', ...args], stdin, deadlineMs: DEADLINE_MS });
  }

  async function inGateway(commands: readonly string[]): Promise<void> {
    const argv = ['nsenter', `--net=${gatewayPath}`, 'ip', '-batch', '-'] as const;
    await exec({ argv: [...argv], stdin: lines(commands), deadlineMs: DEADLINE_MS });
  }

  const namespaces: Namespaces = {
    path,
    async leftovers() {
      await mkdir(directory, { recursive: true, mode: 0o755 });
      const names = await readdir(directory);
      return names.filter((name) => name.startsWith(`${prefix}-`)).map((name) => join(directory, name));
    },
    async createGateway() {
      await script(CREATE, [gatewayPath, lines(['link set lo up']), gatewayRuleset()]);
      return gatewayPath;
    },
    async createSlot(spec) {
      const { index, addresses } = spec;
      await script(CREATE, [spec.path, slotLinks(spec, gatewayPath), slotRuleset(addresses) + spec.rules]);
      await inGateway([
        `addr add ${addresses.gatewayIpv4}/31 dev ${linkName(index)}`,
        `addr add ${addresses.gatewayIpv6}/127 dev ${linkName(index)} nodad`,
        `link set ${linkName(index)} up`,
      ]);
    },
    async deleteSlot({ index, path: slotPath }) {
      // The link first: it takes its peer with it even while an engine still holds the namespace.
      await exec({
        argv: ['nsenter', `--net=${gatewayPath}`, 'ip', '-force', '-batch', '-'],
        stdin: `link del ${linkName(index)}\n`,
        deadlineMs: DEADLINE_MS,
      }).catch(() => '');
      await namespaces.deleteFiles([slotPath]);
    },
    async deleteFiles(paths) {
      await script(DELETE, paths);
    },
    async nft(namespace, transaction, signal) {
      const argv = ['nsenter', `--net=${namespace}`, 'nft', '-f', '-'] as const;
      await exec({ argv: [...argv], stdin: transaction, deadlineMs: DEADLINE_MS }, signal);
    },
  };
  return namespaces;
}
