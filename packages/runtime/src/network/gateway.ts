import { isIPv4 } from 'node:net';
import type { Clock, Log } from '@agentenv/core';
import type { Namespaces } from './namespaces.ts';
import { createFixedResolvers, createHostResolvers, type ResolverChoice } from './resolvers.ts';
import { hostAddressesTransaction, resolverTransaction } from './ruleset.ts';
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

/** The namespace all slots leave through: forwarding, the uplink and the way to the resolver. */
export interface Gateway extends AsyncDisposable {
  /** Reads the host's resolvers and addresses again and puts what changed in force. */
  refresh(): Promise<void>;
}

/** Removes what a former server left, then builds the gateway; resolves when its uplink is ready. */
export async function createGateway(options: GatewayOptions): Promise<Gateway> {
  const { namespaces, clock, log, dnsServers, resolverFiles, hostAddresses, uplinkWrapper } = options;
  const gatewayPath = namespaces.path('gateway');
  const pidFile = namespaces.path('pasta.pid');
  await endLeftoverPasta(pidFile, gatewayPath);
  const leftovers = await namespaces.leftovers();
  if (leftovers.length > 0) {
    log.info({ leftovers }, 'removing the network namespaces of a former server');
    await namespaces.deleteFiles(leftovers);
  }
  await namespaces.createGateway();
  const uplink =
    options.uplink === 'none'
      ? createNoUplink()
      : createPastaUplink({ gatewayPath, pidFile, clock, log, ...(uplinkWrapper && { wrapper: uplinkWrapper }) });

  const inForce = { rules: '', addresses: '' };
  let refreshing: Promise<void> | undefined;
  let again = false;
  let disposed = false;

  const resolvers =
    dnsServers === undefined || dnsServers.length === 0
      ? createHostResolvers({ ...(resolverFiles && { files: resolverFiles }), onChange, log })
      : createFixedResolvers(dnsServers);

  async function apply(): Promise<void> {
    const addresses = [...new Set(hostAddresses())].sort();
    const resolver = await resolvers.read();
    // The gateway carries the host's own addresses too, so one of those is as far away as its loopback.
    const local = isLocal(resolver, addresses) ? resolver.address : undefined;
    const rules = resolverTransaction(resolverAddresses(resolver, local));
    if (rules !== inForce.rules) {
      await namespaces.nft(gatewayPath, rules);
      log.info({ resolver }, 'sandboxes use this resolver');
      inForce.rules = rules;
    }
    await uplink.run({ localResolver: local });
    if (addresses.join() !== inForce.addresses) {
      const ipv4 = addresses.filter((address) => isIPv4(address));
      const ipv6 = addresses.filter((address) => !isIPv4(address));
      await namespaces.nft(gatewayPath, hostAddressesTransaction(ipv4, ipv6));
      inForce.addresses = addresses.join();
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

  const gateway: Gateway = {
    refresh,
    async [Symbol.asyncDispose]() {
      disposed = true;
      resolvers[Symbol.dispose]();
      await refreshing?.catch(() => {});
      await uplink[Symbol.asyncDispose]();
      await namespaces[Symbol.asyncDispose]();
    },
  };
  try {
    await refresh();
  } catch (error) {
    await gateway[Symbol.asyncDispose]();
    throw error;
  }
  return gateway;
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
