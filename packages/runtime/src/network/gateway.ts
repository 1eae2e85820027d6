import { isIPv4 } from 'node:net';
import type { Clock, Log } from '@agentenv/core';
import { type Leftover, type Namespaces, SLOT } from './namespaces.ts';
import { createFixedResolvers, createHostResolvers, type ResolverChoice } from './resolvers.ts';
import { gatewayRuleset, hostAddressesTransaction, resolverTransaction } from './ruleset.ts';
import { createNoUplink, createPastaUplink, endLeftoverPasta, LOCAL_RESOLVER } from './uplink.ts';

export interface GatewayOptions {
  readonly namespaces: Namespaces;
  readonly clock: Clock;
  readonly log: Log;
  readonly uplink: 'pasta' | 'none';
  readonly dnsServers?: readonly string[];
  /** The host's resolv.conf files, in order; the usual ones unless given. */
  readonly resolverFiles?: readonly string[];
  readonly hostAddresses: () => readonly string[];
  readonly uplinkWrapper?: readonly string[];
}

/** The namespace all slots leave through: forwarding, the uplink and the way to the resolver. Disposing removes it. */
export interface Gateway extends AsyncDisposable {
  /** Slots of a former server that lead to it. */
  readonly left: readonly Leftover[];
  /** Reads the host's resolvers and addresses again and puts what changed in force. */
  refresh(): Promise<void>;
  /** Ends and leaves everything as it is to the next server. */
  abandon(): Promise<void>;
}

/** What the host decides about the gateway. */
interface Wanted {
  readonly resolver: ResolverChoice;
  /** The resolver's address, when it is one of the host's own. */
  readonly local: string | undefined;
  readonly rules: string;
  readonly addresses: string;
}

/** Kept namespaces of slots. */
function slotsAmong(leftovers: readonly Leftover[]): readonly Leftover[] {
  return leftovers.filter(({ name, mounted }) => mounted && SLOT.test(name));
}

/**
 * Goes on with the gateway of a former server where slots lead to it, so that their open connections stay; else removes what
 * one left and builds a gateway. Resolves when its uplink is ready.
 */
export async function createGateway(options: GatewayOptions): Promise<Gateway> {
  const { namespaces, clock, log, dnsServers, resolverFiles, hostAddresses, uplinkWrapper } = options;
  const gatewayPath = namespaces.path('gateway');
  const pidFile = namespaces.path('pasta.pid');
  const resolvers =
    dnsServers === undefined || dnsServers.length === 0
      ? createHostResolvers({ ...(resolverFiles && { files: resolverFiles }), onChange, log })
      : createFixedResolvers(dnsServers);
  const uplink =
    options.uplink === 'none'
      ? createNoUplink()
      : createPastaUplink({ gatewayPath, pidFile, clock, log, ...(uplinkWrapper && { wrapper: uplinkWrapper }) });

  const inForce = { rules: '', addresses: '' };
  let left: readonly Leftover[] = [];
  /** What is there is this server's; until then a failure must not take it from sandboxes that run. */
  let own = false;
  let refreshing: Promise<void> | undefined;
  let again = false;
  let disposed = false;

  async function wanted(): Promise<Wanted> {
    const addresses = [...new Set(hostAddresses())].sort();
    const resolver = await resolvers.read();
    // The gateway carries the host's own addresses too, so one of those is as far away as its loopback.
    const local = isLocal(resolver, addresses) ? resolver.address : undefined;
    return {
      resolver,
      local,
      rules: resolverTransaction(resolverAddresses(resolver, local)),
      addresses: hostAddressesTransaction(
        addresses.filter((address) => isIPv4(address)),
        addresses.filter((address) => !isIPv4(address)),
      ),
    };
  }

  /** At no moment of it a slot reaches more than it may. */
  async function takeOver(): Promise<boolean> {
    const { rules, addresses } = await wanted();
    if (!(await namespaces.takeOverGateway(gatewayRuleset() + rules + addresses))) return false;
    Object.assign(inForce, { rules, addresses });
    return true;
  }

  async function begin(): Promise<void> {
    const leftovers = await namespaces.leftovers();
    const slots = slotsAmong(leftovers);
    if (slots.length > 0 && (await takeOver())) {
      left = slots;
      if (options.uplink === 'none') await endLeftoverPasta(pidFile, gatewayPath, clock);
      await namespaces.deleteFiles(leftovers.filter(({ mounted, path }) => !mounted && path !== pidFile).map(pathOf));
      log.info({ slots: slots.length }, 'going on with the gateway of a former server');
      return;
    }
    own = true;
    await endLeftoverPasta(pidFile, gatewayPath, clock);
    if (leftovers.length > 0) log.info({ leftovers: leftovers.map(pathOf) }, 'removing the network of a former server');
    await namespaces.deleteFiles(leftovers.map(pathOf));
    await namespaces.createGateway();
  }

  async function apply(): Promise<void> {
    const { resolver, local, rules, addresses } = await wanted();
    if (rules !== inForce.rules) {
      await namespaces.nft(gatewayPath, rules);
      log.info({ resolver }, 'sandboxes use this resolver');
      inForce.rules = rules;
    }
    await uplink.run({ localResolver: local });
    if (addresses !== inForce.addresses) {
      await namespaces.nft(gatewayPath, addresses);
      inForce.addresses = addresses;
    }
  }

  /** One at a time; a change during a refresh makes one more. */
  async function refresh(): Promise<void> {
    again = true;
    refreshing ??= (async () => {
      try {
        while (again && !disposed) {
          again = false;
          await apply();
        }
      } finally {
        refreshing = undefined;
      }
    })();
    return refreshing;
  }

  function onChange(): void {
    refresh().catch((error: unknown) => log.warn({ error }, 'a change of the resolvers could not be put in force'));
  }

  async function end(): Promise<void> {
    disposed = true;
    resolvers[Symbol.dispose]();
    await refreshing?.catch(() => {});
    await namespaces[Symbol.asyncDispose]();
  }

  const gateway: Gateway = {
    get left() {
      return left;
    },
    refresh,
    async abandon() {
      await end();
      uplink.abandon();
    },
    async [Symbol.asyncDispose]() {
      await end();
      await uplink[Symbol.asyncDispose]();
      await namespaces.deleteGateway();
    },
  };
  try {
    await begin();
    await refresh();
  } catch (error) {
    if (own) await gateway[Symbol.asyncDispose]();
    else await gateway.abandon();
    throw error;
  }
  return gateway;
}

function pathOf({ path }: Leftover): string {
  return path;
}

function isLocal(
  resolver: ResolverChoice,
  hostAddresses: readonly string[],
): resolver is Exclude<ResolverChoice, { kind: 'none' }> {
  return resolver.kind === 'loopback' || (resolver.kind === 'server' && hostAddresses.includes(resolver.address));
}

/** A resolver on the host itself is reached through the uplink, which carries only UDP there. */
function resolverAddresses(
  resolver: ResolverChoice,
  local: string | undefined,
): { readonly udp?: string; readonly tcp?: string } {
  if (local !== undefined) return { udp: LOCAL_RESOLVER };
  return resolver.kind === 'none' ? {} : { udp: resolver.address, tcp: resolver.address };
}
