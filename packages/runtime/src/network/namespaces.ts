import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, PlatformError } from '@agentenv/core';
import type { Exec } from '../exec.ts';
import { GATEWAY_MAC, GUEST_ADDRESSING, type SlotAddresses } from './addressing.ts';
import { createIpBatch, type IpBatch } from './ip-batch.ts';
import { gatewayRuleset, SLOT_LINK_PREFIX, slotRuleset, TAP, UPLINK_OF_SLOT } from './ruleset.ts';

/** Milliseconds any one of these commands may take on a busy host. */
const DEADLINE_MS = 15_000;

/**
 * Run in a fresh namespace, with forwarding on inside it and nowhere else. Links are stdin, the rules `$1`. The kernel's
 * limit of one ICMP error per second and peer would make a refused packet look like a lost one; they go to the guest alone.
 */
const SET_UP = `
cd /proc/sys/net
for key in accept_ra accept_dad autoconf; do echo 0 > ipv6/conf/default/$key; done
echo 1 > ipv4/ip_forward
echo 1 > ipv6/conf/all/forwarding
echo 0 > ipv4/icmp_ratemask
echo 0 > ipv6/icmp/ratelimit
ip -batch -
exec nft "$1"
`;

export interface SlotSpec {
  readonly index: number;
  readonly path: string;
  readonly uid: number;
  readonly addresses: SlotAddresses;
  /** `ip -batch` lines that make the device `TAP`. */
  readonly device: readonly string[];
  /** Connections the guest may have open at once. */
  readonly maxConnections: number;
  /** The policy transaction a fresh slot starts with. */
  readonly rules: string;
}

/** Name of a slot by its number. */
export const slotName = (index: number): string => `slot-${index}`;
export const SLOT = /^slot-([1-9]\d*)$/;

/** A file that a former server left. */
export interface Leftover {
  /** Without the prefix. */
  readonly name: string;
  readonly path: string;
  /** It keeps a namespace. */
  readonly mounted: boolean;
}

/**
 * Creates, deletes and changes the namespaces of one server; their files are `<directory>/<prefix>-NAME`. Disposing leaves
 * them alone.
 */
export interface Namespaces extends AsyncDisposable {
  path(name: string): string;
  /** Files of this prefix, whoever made them. */
  leftovers(): Promise<readonly Leftover[]>;
  createGateway(): Promise<void>;
  /**
   * Takes over a former server's gateway and puts these rules in force instead of its own; false when there is no whole one.
   * Throws `deadline_exceeded` when the host is too busy to tell.
   */
  takeOverGateway(rules: string): Promise<boolean>;
  createSlot(spec: SlotSpec): Promise<void>;
  /** Also removes what a failed `createSlot` left. */
  deleteSlot(spec: Pick<SlotSpec, 'index' | 'path'>): Promise<void>;
  deleteFiles(paths: readonly string[]): Promise<void>;
  deleteGateway(): Promise<void>;
  /** One nft transaction inside the namespace at `path`. */
  nft(path: string, transaction: string, signal?: AbortSignal): Promise<void>;
}

/** Default device of a slot: a persistent tap that its uid may attach to. */
export function tapDevice(uid: number): readonly string[] {
  return [`tuntap add dev ${TAP} mode tap user ${uid} group ${uid}`];
}

function slotLinks({ index, addresses, device }: SlotSpec, gatewayPath: string): readonly string[] {
  const { gatewayIpv4, gatewayIpv6, slotIpv4, slotIpv6, hostInteractionIp } = addresses;
  const { ipv4, ipv6, mac, gatewayIpv4: inside4, gatewayIpv6: inside6 } = GUEST_ADDRESSING;
  const [guest4 = '', length4 = ''] = ipv4.split('/');
  const [guest6 = '', length6 = ''] = ipv6.split('/');
  return [
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
  ];
}

function linkName(index: number): string {
  return `${SLOT_LINK_PREFIX}${index}`;
}

/** Mount points of this process, as a set of paths. */
async function mountPoints(): Promise<ReadonlySet<string>> {
  const text = await readFile('/proc/self/mountinfo', 'utf8');
  const decode = (path: string) =>
    path.replaceAll(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
  return new Set(text.split('\n').map((line) => decode(line.split(' ')[4] ?? '')));
}

export function createNamespaces({
  directory,
  prefix,
  exec,
  clock,
}: {
  readonly directory: string;
  readonly prefix: string;
  readonly exec: Exec;
  readonly clock: Clock;
}): Namespaces {
  const path = (name: string) => join(directory, `${prefix}-${name}`);
  const gatewayPath = path('gateway');
  let gateway: IpBatch | undefined;

  /** A namespace kept by a bind mount at `file`. */
  async function create(file: string, links: readonly string[], rules: string): Promise<void> {
    await writeFile(file, '', { flag: 'wx', mode: 0o444 });
    const argv = ['unshare', `--net=${file}`, 'sh', '-ec', SET_UP, 'sh', rules] as const;
    await exec({ argv: [...argv], stdin: `${links.join('\n')}\n`, deadlineMs: DEADLINE_MS });
  }

  async function nft(namespace: string, transaction: string, signal?: AbortSignal): Promise<void> {
    const argv = ['nsenter', `--net=${namespace}`, 'nft', '-f', '-'] as const;
    await exec({ argv: [...argv], stdin: transaction, deadlineMs: DEADLINE_MS }, signal);
  }

  async function deleteFiles(files: readonly string[]): Promise<void> {
    const mounted = await mountPoints();
    const kept = files.filter((file) => mounted.has(file));
    // Lazy, because a process inside may still be on its way out.
    if (kept.length > 0) await exec({ argv: ['umount', '--lazy', ...kept], deadlineMs: DEADLINE_MS });
    await Promise.all(files.map((file) => rm(file, { force: true })));
  }

  return {
    path,
    async leftovers() {
      await mkdir(directory, { recursive: true, mode: 0o755 });
      const files = (await readdir(directory)).filter((file) => file.startsWith(`${prefix}-`));
      const mounted = await mountPoints();
      return files.map((file) => {
        const full = join(directory, file);
        return { name: file.slice(prefix.length + 1), path: full, mounted: mounted.has(full) };
      });
    },
    async createGateway() {
      await create(gatewayPath, ['link set lo up'], gatewayRuleset());
      gateway = createIpBatch({ netns: gatewayPath, clock });
    },
    async takeOverGateway(rules) {
      try {
        // Its table is made last of all, so one that was not finished fails here.
        await nft(gatewayPath, `delete table inet aenv\n${rules}`);
      } catch (error) {
        // A slow moment of the host must not cost sandboxes that run their network.
        if (error instanceof PlatformError && error.code === 'deadline_exceeded') throw error;
        return false;
      }
      gateway = createIpBatch({ netns: gatewayPath, clock });
      return true;
    },
    async createSlot(spec) {
      const { index, addresses } = spec;
      const rules = slotRuleset(addresses, spec.maxConnections) + spec.rules;
      await create(spec.path, slotLinks(spec, gatewayPath), rules);
      await gateway?.run([
        `addr add ${addresses.gatewayIpv4}/31 dev ${linkName(index)}`,
        `addr add ${addresses.gatewayIpv6}/127 dev ${linkName(index)} nodad`,
        `link set ${linkName(index)} up`,
      ]);
    },
    async deleteSlot({ index, path: slotPath }) {
      // The link first: it takes its peer with it even while an engine still holds the namespace. It may be gone already.
      await gateway?.run([`link del ${linkName(index)}`]).catch(() => {});
      await deleteFiles([slotPath]);
    },
    deleteFiles,
    deleteGateway: () => deleteFiles([gatewayPath]),
    nft,
    async [Symbol.asyncDispose]() {
      await gateway?.[Symbol.asyncDispose]();
    },
  };
}
