import { PlatformError } from '@agentenv/core';
import type { Agent } from '../agent.ts';
import { GUEST_STREAMS } from '../channel/channel.ts';
import { type ClientContext, nanoseconds } from './context.ts';
import { DEADLINES } from './deadlines.ts';

/** Fresh entropy given to the guest's kernel at activation, bytes. */
const ENTROPY_BYTES = 64;

export interface GenerationOptions {
  /** Whether a stream belongs to a process and so survives a new generation. */
  readonly survives: (stream: number) => boolean;
}

/** Creates what begins and ends the guest's running: activation and the hold before a capture. */
export function createGeneration(
  { channel, calls, clock, rng }: ClientContext,
  { survives }: GenerationOptions,
): Pick<Agent, 'activate' | 'quiesce' | 'settle'> {
  let held = false;

  function goOn(guestCredit: 'kept' | 'zeroed'): void {
    held = false;
    channel.grantCredit(guestCredit);
  }

  async function hold(operation: 'quiesce' | 'settle', leaseMs: number, signal: AbortSignal | undefined) {
    if (held) throw new PlatformError('conflict', 'the sandbox is quiesced already');
    const call = calls.open(operation, { leaseMs }, { deadlineMs: DEADLINES[operation], signal });
    held = true;
    channel.hold();
    try {
      const { processes, frozenUs } = await call.response;
      return { processes, frozenMs: Number(frozenUs) / 1000 };
    } catch (caught) {
      goOn('kept');
      throw caught;
    }
  }

  return {
    async activate({ key, generation, resetStreams, hostname, files }, signal) {
      const encoder = new TextEncoder();
      const call = calls.open(
        'activate',
        {
          key,
          generation,
          resetStreams,
          wallNs: nanoseconds(clock.now()),
          entropy: rng.bytes(ENTROPY_BYTES),
          hostname,
          files: files.map(({ path, mode, content }) => ({ path, mode, content: encoder.encode(content) })),
        },
        {
          deadlineMs: DEADLINES.activate,
          signal,
          endsHold: true,
          // Handled before any frame behind it: from here on the guest's credit is zero and the former streams are gone.
          onResponse() {
            if (resetStreams) {
              const gone = new PlatformError('canceled', 'a new generation of the sandbox began');
              const later = (stream: number): boolean => stream > call.stream.id && stream < GUEST_STREAMS;
              channel.drop((stream) => !later(stream) && !survives(stream), gone);
            }
            goOn('zeroed');
          },
        },
      );
      try {
        await call.response;
      } catch (caught) {
        // How far the guest got, and so what its credit is, cannot be known: only a resync makes both sides agree again.
        channel.close('closed', 'the activation failed');
        throw caught;
      }
    },

    quiesce: (leaseMs, signal) => hold('quiesce', leaseMs, signal),
    settle: (leaseMs, signal) => hold('settle', leaseMs, signal),
  };
}
