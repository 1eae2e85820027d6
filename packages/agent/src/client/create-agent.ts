import type { Duplex } from 'node:stream';
import { type Clock, type Log, PlatformError, type Rng } from '@agentenv/core';
import type { Agent } from '../agent.ts';
import { onAbort } from '../channel/abort.ts';
import { createCalls } from '../channel/calls.ts';
import { createChannel } from '../channel/channel.ts';
import { RESYNC_KEY_BYTES } from '../wire/resync-scanner.ts';
import { createBench } from './bench.ts';
import type { ClientContext } from './context.ts';
import { createFiles } from './files.ts';
import { createGeneration } from './generation.ts';
import { createPorts } from './ports.ts';
import { createProcesses } from './processes.ts';
import { createSystem } from './system.ts';
import { createWatches } from './watch.ts';

const DEFAULT_RESYNC_TIMEOUT = 30_000;

export interface AgentOptions {
  /** A fresh connection to the guest; the agent owns and always reads it, and destroys it at the end. */
  readonly socket: Duplex;
  /** Secret of the guest's generation, 16 bytes; all zero for a guest that was never activated. */
  readonly key: Uint8Array;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
  /** The sandbox's own address in its network, tried last by `connectPort`; none by default. */
  readonly slotAddress?: string;
  /** Longest wait for the guest's answer to the resync, milliseconds; 30 000 by default. */
  readonly resyncTimeoutMs?: number;
}

/** A nonce without zero bytes: a guest that has no key yet tells records from padding by them. */
function freshNonce(rng: Rng): Uint8Array {
  return rng.bytes(RESYNC_KEY_BYTES).map((byte) => byte || 1);
}

/**
 * Takes over a connection: resyncs, learns the running processes, grants credit. An agent lives as long as its
 * connection; after a reconnect a new one finds the processes again by `listProcesses`.
 * The signal of a call ends it up to the moment its promise settles, of `readFile` up to the end of the body.
 * @throws PlatformError `sandbox_unavailable` when the guest does not answer in time (it may be stopped, or somebody
 * else holds the connection) or breaks the protocol, `canceled` by the signal; the socket is destroyed then.
 */
export async function createAgent(options: AgentOptions, signal?: AbortSignal): Promise<Agent> {
  const { socket, key, clock, rng, log } = options;
  if (key.length !== RESYNC_KEY_BYTES) {
    socket.destroy();
    throw new PlatformError('internal', `the key of an agent channel has ${RESYNC_KEY_BYTES} bytes`);
  }
  const channel = createChannel({ socket, key, nonce: freshNonce(rng), log });
  const context: ClientContext = { channel, calls: createCalls({ channel, clock }), clock, rng, log };
  const processes = createProcesses(context);
  const started = clock.monotonic();

  let aborted: PlatformError | undefined;
  using _abort = onAbort(signal, (error) => {
    aborted = error;
    channel.close('closed', 'the connection attempt was given up');
  });
  try {
    using _deadline = clock.timer(options.resyncTimeoutMs ?? DEFAULT_RESYNC_TIMEOUT, () =>
      channel.close('disconnected', 'the guest did not answer the resync'),
    );
    const discarded = await channel.synchronised;
    log.debug({ discarded, milliseconds: clock.monotonic() - started }, 'agent channel synchronised');
    await processes.listProcesses();
  } catch (caught) {
    channel.close('closed', 'the guest could not be asked for its processes');
    throw aborted ?? caught;
  }

  return {
    closed: channel.closed,
    ...createSystem(context),
    ...createGeneration(context, { survives: processes.owns }),
    spawn: processes.spawn,
    listProcesses: processes.listProcesses,
    ...createFiles(context),
    ...createWatches(context),
    ...createPorts(context, { slotAddress: options.slotAddress ?? '' }),
    ...createBench(context),
    async [Symbol.asyncDispose]() {
      channel.close('closed', 'closed by the host');
      await channel.closed;
    },
  };
}
