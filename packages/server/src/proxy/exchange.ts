import type { ClientRequest, IncomingMessage, OutgoingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Clock, Log } from '@agentenv/core';
import { limitUnreadBody, resetConnection } from '@agentenv/envd';
import { type Asker, answerTo, type DataPlaneProblem, writeAnswer } from './answers.ts';
import { type ConnectTarget, type OpenGuestConnection, openFor } from './guest-connections.ts';
import { createGuestRequest } from './guest-request.ts';
import { removeHeader, trailersOf } from './header-fields.ts';
import { expectsConsent, hasBody, type RequestHeadOptions, requestHead } from './request-head.ts';
import { responseHead } from './response-head.ts';

export interface ForwardingOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly open: OpenGuestConnection;
  /** Silence in both directions after which an exchange or an upgraded connection is broken off, milliseconds. */
  readonly idleTimeoutMs: number;
}

/** One request on its way to a port of a sandbox. */
export interface Forwarding {
  readonly target: ConnectTarget;
  readonly asker: Asker;
  /** Path and query for the service, not a byte changed. */
  readonly url: string;
  readonly head: RequestHeadOptions;
}

/** Interim answers (1xx) passed on per request; nobody needs more, and each is kept in memory for a slow client. */
const MAX_INTERIM_ANSWERS = 16;
/** Of AgentENV clients: silence before an answer begins, progress of the upload starts it anew (agentenv.md section 15.3). */
const ANSWER_TIMEOUT_MS = 30_000;

const NOT_ASCII = /[^\t\x20-\x7e]/;

export type Exchange = (request: IncomingMessage, response: ServerResponse, forwarding: Forwarding) => void;

/**
 * Passes HTTP exchanges to ports of sandboxes, one connection inside for each. Bytes are streamed both ways as they come
 * and no faster than the slower side takes them. The end of either side ends the other: an answer the client does not
 * wait for is canceled, and one that breaks off inside breaks off outside.
 */
export function createExchange({ clock, log, open, idleTimeoutMs }: ForwardingOptions): Exchange {
  async function forward(request: IncomingMessage, response: ServerResponse, forwarding: Forwarding): Promise<void> {
    const refuse = (problem: DataPlaneProblem): void => writeAnswer(response, answerTo(problem, forwarding.asker));
    const { port } = forwarding.head;
    const outcome = await openFor(response, (signal) => open(forwarding.target, port, signal));
    if (outcome === undefined) return;
    if (outcome.kind !== 'connected') {
      refuse(outcome);
      return;
    }
    const { stream: connection } = outcome;
    let answer: IncomingMessage | undefined;
    let timer: Disposable | undefined;
    response.once('close', () => {
      timer?.[Symbol.dispose]();
      if (answer?.complete === true && response.writableFinished) outcome.leave();
      else connection.destroy();
    });
    const outgoing = send(request, response, forwarding, connection);
    timer = answerTimer(request, forwarding, () => {
      refuse({ kind: 'timed-out', port });
      connection.destroy();
    });
    const fail = (): void => {
      timer?.[Symbol.dispose]();
      request.unpipe(outgoing);
      // Whoever has the whole answer does not care how the connection of the service ended.
      if (answer?.complete === true) return;
      connection.destroy();
      if (response.headersSent) resetConnection(response);
      else refuse({ kind: 'no-answer', port });
    };
    outgoing.once('response', (incoming) => {
      answer = incoming;
      timer?.[Symbol.dispose]();
      incoming.once('end', () => request.unpipe(outgoing));
      incoming.once('close', () => {
        if (!incoming.complete) fail();
      });
      incoming.on('error', fail);
      if (!relay(request, incoming, response)) fail();
    });
    outgoing.on('error', fail);
    // Nobody asked for another protocol.
    outgoing.once('upgrade', fail);
    passInterimAnswers(request, outgoing, response);
  }

  return (request, response, forwarding) => {
    limitUnreadBody(request, response, clock);
    response.setTimeout(idleTimeoutMs, () => resetConnection(response));
    forward(request, response, forwarding).catch((error: unknown) => {
      log.error({ err: error, port: forwarding.head.port }, 'a request could not be forwarded');
      resetConnection(response);
    });
  };

  /** Sends the request, its body as it comes. */
  function send(
    request: IncomingMessage,
    response: ServerResponse,
    { head, url }: Forwarding,
    connection: Duplex,
  ): ClientRequest {
    const headers = requestHead(request, head);
    if (headers.some((text) => NOT_ASCII.test(text)) && expectsConsent(request)) {
      // Node would write such a head in UTF-8 and the service would read other bytes than the client sent.
      response.writeContinue();
      removeHeader(headers, 'expect');
    }
    const outgoing = createGuestRequest(connection, { method: request.method, url, headers });
    flushHead(outgoing);
    if (!hasBody(request)) {
      outgoing.end();
      return outgoing;
    }
    request.once('end', () => {
      if (request.rawTrailers.length > 0 && outgoing.chunkedEncoding) {
        outgoing.addTrailers(trailersOf(request.rawTrailers));
      }
    });
    request.pipe(outgoing);
    return outgoing;
  }

  function answerTimer(request: IncomingMessage, { asker }: Forwarding, onTimeout: () => void): Disposable | undefined {
    if (asker.family === 'e2b') return undefined;
    let timer = clock.timer(ANSWER_TIMEOUT_MS, onTimeout);
    const restart = (): void => {
      timer[Symbol.dispose]();
      timer = clock.timer(ANSWER_TIMEOUT_MS, onTimeout);
    };
    request.on('data', restart);
    return {
      [Symbol.dispose]() {
        request.off('data', restart);
        timer[Symbol.dispose]();
      },
    };
  }
}

/** Passes an answer on; false when it is none that HTTP allows. */
function relay(request: IncomingMessage, answer: IncomingMessage, response: ServerResponse): boolean {
  const status = answer.statusCode ?? 0;
  const hasContent = request.method !== 'HEAD' && status !== 204 && status !== 304;
  const chunked = answer.headers['transfer-encoding'] !== undefined && request.httpVersion !== '1.0';
  const head = responseHead(answer, hasContent && chunked);
  response.sendDate = false;
  try {
    // HTTP/2 has no reason phrases.
    if (request.httpVersionMajor > 1) response.writeHead(status, head);
    else response.writeHead(status, answer.statusMessage ?? '', head);
  } catch {
    return false;
  }
  if (request.httpVersionMajor > 1) response.flushHeaders();
  else flushHead(response);
  answer.once('end', () => {
    if (answer.rawTrailers.length > 0 && hasContent && chunked) response.addTrailers(trailersOf(answer.rawTrailers));
  });
  answer.pipe(response);
  return true;
}

/** Sends a head before there is a body. Node's own way to do so would write it in UTF-8, and heads are bytes. */
function flushHead(message: OutgoingMessage): void {
  message.write('', 'latin1');
}

/** `100 Continue` for those who wait for it, early hints and the like for everybody who knows HTTP/1.1. */
function passInterimAnswers(request: IncomingMessage, outgoing: ClientRequest, response: ServerResponse): void {
  let left = request.httpVersion === '1.0' ? 0 : MAX_INTERIM_ANSWERS;
  outgoing.on('information', ({ statusCode, rawHeaders }) => {
    if (response.headersSent || response.destroyed || left-- <= 0) return;
    if (statusCode === 100) {
      if (expectsConsent(request)) response.writeContinue();
      return;
    }
    response.writeInformation(statusCode, trailersOf(rawHeaders));
  });
}
