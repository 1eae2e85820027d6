import { type Clock, PlatformError } from '@agentenv/core';
import { FRAME, LIMITS, OPERATIONS, STATUS } from '../generated/protocol.ts';
import type { Body } from '../wire/body-types.ts';
import { decodeBody } from '../wire/decode-body.ts';
import { encodeBody } from '../wire/encode-body.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import { onAbort } from './abort.ts';
import type { Channel, ChannelStream, StreamEvents, StreamOptions } from './channel.ts';
import { errorOfAbort, errorOfStatus } from './status.ts';

export type OperationName = keyof typeof OPERATIONS;
export type RequestBody<Name extends OperationName> = Body<(typeof OPERATIONS)[Name]['request']>;
export type ResponseBody<Name extends OperationName> = Body<(typeof OPERATIONS)[Name]['response']>;

/** u16 op, u32 deadlineMs in front of a request's body. */
const REQUEST_PREFIX = 6;

/** Requests without an answer at once, per channel. */
const MAX_PENDING_CALLS = 4096;
/** Memory of unsent control frames beyond which no request is accepted, bytes. */
const MAX_QUEUED_REQUESTS = 4 * 1024 * 1024;

const ERROR_LAYOUT = [
  ['errno', 'u32'],
  ['message', 'str'],
] as const;

export interface CallOptions<Name extends OperationName> {
  /** Milliseconds until the call is given up; undefined: the caller sets one by `Call.expectWithin`. */
  readonly deadlineMs: number | undefined;
  /** Who watches the deadline; the guest's would also end a transfer that goes on behind the response. Default both. */
  readonly deadlineIn?: 'host' | 'both';
  readonly signal?: AbortSignal | undefined;
  /** Sees the response before any later frame is handled; a ProtocolViolation it throws ends the channel. */
  readonly onResponse?: (response: ResponseBody<Name>) => void;
  /** Given: the stream stays open behind the response and belongs to the caller. */
  readonly stream?: Omit<StreamEvents, 'response'> & StreamOptions;
  /** Leaves in front of everything held, and ends the hold. */
  readonly endsHold?: boolean;
}

/** A request on its way. */
export interface Call<Name extends OperationName> {
  readonly stream: ChannelStream;
  readonly response: Promise<ResponseBody<Name>>;
  /** Gives the call up when there is no response in that many milliseconds from now. */
  expectWithin(milliseconds: number): void;
}

/** Requests and their answers on one channel. */
export interface Calls {
  /** Sends a request; `response` rejects with the guest's status, `deadline_exceeded`, `canceled` or `sandbox_unavailable`. */
  open<Name extends OperationName>(name: Name, body: RequestBody<Name>, options: CallOptions<Name>): Call<Name>;
  /** The same for requests that are over with their response. */
  call<Name extends OperationName>(
    name: Name,
    body: RequestBody<Name>,
    options: CallOptions<Name>,
  ): Promise<ResponseBody<Name>>;
  /** The same with the response converted; a ProtocolViolation of the conversion ends the channel. */
  convert<Name extends OperationName, Result>(
    name: Name,
    body: RequestBody<Name>,
    conversion: (response: ResponseBody<Name>) => Result,
    options: Omit<CallOptions<Name>, 'onResponse'>,
  ): Promise<Result>;
}

/** Creates the calls of a channel. */
export function createCalls({ channel, clock }: { readonly channel: Channel; readonly clock: Clock }): Calls {
  let pending = 0;

  function assertRoom(): void {
    if (channel.failure !== undefined) throw channel.failure;
    if (pending >= MAX_PENDING_CALLS || channel.queuedControl > MAX_QUEUED_REQUESTS) {
      throw new PlatformError('capacity', 'too many requests wait for the guest agent', { details: { pending } });
    }
  }

  function encode<Name extends OperationName>(
    name: Name,
    body: RequestBody<Name>,
    options: CallOptions<Name>,
  ): Uint8Array {
    const { op, request } = OPERATIONS[name];
    const payload = encodeBody<(typeof OPERATIONS)[Name]['request']>(request, body, {
      limit: LIMITS.MAX_CONTROL,
      prefix: REQUEST_PREFIX,
    });
    payload.writeUInt16LE(op, 0);
    payload.writeUInt32LE(options.deadlineIn === 'host' ? 0 : (options.deadlineMs ?? 0), 2);
    return payload;
  }

  function open<Name extends OperationName>(
    name: Name,
    body: RequestBody<Name>,
    options: CallOptions<Name>,
  ): Call<Name> {
    const { signal } = options;
    if (signal?.aborted === true) throw errorOfAbort(signal);
    const payload = encode(name, body, options);
    const id = channel.allocate();
    assertRoom();
    const answer = Promise.withResolvers<ResponseBody<Name>>();
    // A caller that is busy sending a body looks at the answer later.
    answer.promise.catch(() => {});
    let waiting = true;
    let timer: Disposable | undefined;

    const stream = channel.stream(
      id,
      {
        ...options.stream,
        response(bytes) {
          if (!waiting) throw new ProtocolViolation(`second RESPONSE on stream ${stream.id}`);
          const status = bytes.readUInt32LE();
          if (status !== STATUS.OK) {
            const { errno, message } = decodeBody(ERROR_LAYOUT, bytes.subarray(4));
            const error = errorOfStatus(status, errno, message);
            stream.release(error);
            fail(error);
            return;
          }
          const { response: layout } = OPERATIONS[name];
          const response = decodeBody<(typeof OPERATIONS)[Name]['response']>(layout, bytes.subarray(4));
          if (options.stream === undefined) stream.release();
          try {
            options.onResponse?.(response);
          } catch (caught) {
            // The stream is gone already, so the channel, which closes now, cannot tell this call.
            fail(new PlatformError('sandbox_unavailable', 'the guest agent broke the protocol', { cause: caught }));
            throw caught;
          }
          stopWaiting();
          answer.resolve(response);
        },
        lost(error) {
          if (waiting) fail(error);
          else options.stream?.lost(error);
        },
      },
      options.stream,
    );

    function stopWaiting(): void {
      waiting = false;
      pending--;
      timer?.[Symbol.dispose]();
      abort[Symbol.dispose]();
    }

    function fail(error: PlatformError): void {
      stopWaiting();
      answer.reject(error);
    }

    function giveUp(error: PlatformError): void {
      if (!waiting) return;
      stream.reset(error);
      fail(error);
    }

    const abort = onAbort(signal, giveUp);
    const expectWithin = (milliseconds: number): void => {
      timer?.[Symbol.dispose]();
      if (!waiting) return;
      timer = clock.timer(milliseconds, () =>
        giveUp(new PlatformError('deadline_exceeded', `the guest agent did not answer ${name} in time`)),
      );
    };
    if (options.deadlineMs !== undefined) expectWithin(options.deadlineMs);
    pending++;
    if (options.endsHold === true) channel.resumeWith(stream.id, FRAME.REQUEST, payload);
    else channel.control(stream.id, FRAME.REQUEST, payload);
    return { stream, response: answer.promise, expectWithin };
  }

  return {
    open,
    async call(name, body, options) {
      return await open(name, body, options).response;
    },
    async convert(name, body, conversion, options) {
      const converted = Promise.withResolvers<ReturnType<typeof conversion>>();
      const onResponse = (response: Parameters<typeof conversion>[0]): void => converted.resolve(conversion(response));
      await open(name, body, { ...options, onResponse }).response;
      return await converted.promise;
    },
  };
}
