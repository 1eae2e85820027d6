import { once } from 'node:events';
import { createServer } from 'node:net';
import { PlatformError } from '@agentenv/core';
import { splitAddress } from './config/load.ts';

/** A host name may have to be resolved. */
const LOOK_DEADLINE_MS = 10_000;

/** Configuration keys of addresses a server listens on. */
export type AddressKey = 'api_addr' | 'tls.addr';

/** What is told of an address, `host:port`, that this server cannot have. */
export function cannotListen(key: AddressKey, address: string, cause: unknown): PlatformError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new PlatformError('unavailable', `cannot listen on ${key} = ${address}: ${reason}`, { cause });
}

/** Throws `unavailable` when somebody else listens on `address` (`host:port`), or it is none of this host. */
export async function requireFree(key: AddressKey, address: string): Promise<void> {
  const probe = createServer();
  try {
    const signal = AbortSignal.timeout(LOOK_DEADLINE_MS);
    probe.listen({ ...splitAddress(address), signal });
    await once(probe, 'listening', { signal });
  } catch (error) {
    throw cannotListen(key, address, error);
  }
  probe.close();
  await once(probe, 'close');
}
