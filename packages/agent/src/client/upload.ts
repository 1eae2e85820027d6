import { type Clock, PlatformError } from '@agentenv/core';
import type { OperationName, RequestBody, ResponseBody } from '../channel/calls.ts';
import type { SendStream } from '../channel/send-stream.ts';
import { LIMITS } from '../generated/protocol.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import type { ClientContext } from './context.ts';
import { DEADLINES, STALL_DEADLINE } from './deadlines.ts';

/** Largest write one stall deadline covers, bytes. */
const PIECE_BYTES = 1_048_576;

/** Operations whose body follows the request as DATA and EOF and which answer at the end. */
type UploadName = OperationName & ('writeFile' | 'sink');

async function writePiece(sender: SendStream | undefined, piece: Uint8Array, clock: Clock): Promise<void> {
  const stalled = Promise.withResolvers<never>();
  using _timer = clock.timer(STALL_DEADLINE, () =>
    stalled.reject(new PlatformError('deadline_exceeded', 'the guest takes no more of the body')),
  );
  await Promise.race([sender?.write(piece), stalled.promise]);
}

/** Iterates a source, failing as soon as the call it feeds fails although the source has nothing to give. */
function readUntilFailure(body: AsyncIterable<Uint8Array>, call: Promise<unknown>): AsyncIterator<Uint8Array> {
  const source = body[Symbol.asyncIterator]();
  let failed: { readonly error: unknown } | undefined;
  let rejectPending: ((error: unknown) => void) | undefined;
  call.catch((error: unknown) => {
    failed = { error };
    rejectPending?.(error);
  });
  return {
    next: () =>
      new Promise((resolve, reject) => {
        if (failed !== undefined) return reject(failed.error);
        rejectPending = reject;
        source.next().then(resolve, reject);
      }),
    return: async () => (await source.return?.()) ?? { done: true, value: undefined },
  };
}

/**
 * Makes a request, sends its body against credit, and resolves with the response that comes behind it. Any failure, of
 * the source too, ends the transfer in the guest.
 */
export async function upload<Name extends UploadName>(
  { calls, clock }: ClientContext,
  name: Name,
  request: RequestBody<Name>,
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal | undefined,
): Promise<ResponseBody<Name>> {
  let complete = false;
  const call = calls.open(name, request, {
    deadlineMs: undefined,
    signal,
    stream: { sendCredit: LIMITS.STREAM_WINDOW, lost() {} },
    onResponse() {
      if (!complete) throw new ProtocolViolation(`${name} was answered before its body ended`);
      call.stream.release();
    },
  });
  const { sender } = call.stream;
  const source = readUntilFailure(body, call.response);
  try {
    for (let next = await source.next(); next.done !== true; next = await source.next()) {
      for (let at = 0; at < next.value.length; at += PIECE_BYTES) {
        await writePiece(sender, next.value.subarray(at, at + PIECE_BYTES), clock);
      }
    }
    await sender?.end();
  } catch (caught) {
    call.stream.reset(PlatformError.fromUnknown(caught));
    // The source may be waiting for its own input; it is told to stop, not waited for, and its own failure is not ours.
    source.return?.()?.catch(() => {});
    throw caught;
  }
  complete = true;
  call.expectWithin(DEADLINES[name]);
  return await call.response;
}
