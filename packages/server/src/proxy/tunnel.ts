import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Clock } from '@agentenv/core';
import { closeAfterAnswer, resetSocket } from '@agentenv/envd';
import { answerTo, type DataPlaneAnswer, type DataPlaneProblem, headersOf } from './answers.ts';
import type { Forwarding, ForwardingOptions } from './exchange.ts';
import { type GuestConnection, openFor } from './guest-connections.ts';
import { createGuestRequest } from './guest-request.ts';
import { requestHead } from './request-head.ts';
import { responseHead } from './response-head.ts';

/** Longest wait for the answer to an upgrade, milliseconds (agentenv.md section 15.3). */
const HANDSHAKE_TIMEOUT_MS = 30_000;

/** What a client sent when it asked to upgrade its connection. */
export interface UpgradeRequest {
  readonly request: IncomingMessage;
  readonly socket: Socket;
  /** Bytes that came behind the head. */
  readonly early: Buffer;
}

/**
 * Asks a service to upgrade and becomes a pipe between it and the client when it agrees; its refusal is passed on as it
 * is. `onAnswer` hears the status that was answered.
 */
export type Tunnel = (asked: UpgradeRequest, forwarding: Forwarding, onAnswer: (status: number) => void) => void;

export function createTunnel({ clock, log, open, idleTimeoutMs }: ForwardingOptions): Tunnel {
  async function dig(asked: UpgradeRequest, forwarding: Forwarding, onAnswer: (status: number) => void): Promise<void> {
    const { socket } = asked;
    const { port } = forwarding.head;
    const refuse = (problem: DataPlaneProblem): void => {
      const answer = answerTo(problem, forwarding.asker);
      onAnswer(answer.status);
      writeRawAnswer(socket, answer, clock);
    };
    const outcome = await openFor(socket, (signal) => open(forwarding.target, port, signal));
    if (outcome === undefined) return;
    if (outcome.kind !== 'connected') refuse(outcome);
    else shakeHands(asked, forwarding, outcome, { refuse, onAnswer });
  }

  function shakeHands(
    { request, socket, early }: UpgradeRequest,
    { url, head }: Forwarding,
    { stream, leave }: GuestConnection,
    on: { readonly refuse: (problem: DataPlaneProblem) => void; readonly onAnswer: (status: number) => void },
  ): void {
    const { port } = head;
    let isAnswered = false;
    const abandon = (): void => {
      stream.destroy();
    };
    const settle = (): void => {
      isAnswered = true;
      timer[Symbol.dispose]();
    };
    const fail = (problem: DataPlaneProblem): void => {
      if (!isAnswered) on.refuse(problem);
      settle();
      abandon();
    };
    const timer = clock.timer(HANDSHAKE_TIMEOUT_MS, () => fail({ kind: 'timed-out', port }));
    socket.once('close', abandon);
    const outgoing = createGuestRequest(stream, { method: request.method, url, headers: requestHead(request, head) });
    outgoing.on('error', () => fail({ kind: 'no-answer', port }));
    outgoing.once('upgrade', (answer, _connection, first) => {
      settle();
      on.onAnswer(101);
      // From here on the client may end its side and still get what comes.
      socket.off('close', abandon);
      writeAgreement(socket, answer, request.headers.upgrade ?? '');
      if (first.length > 0) stream.unshift(first);
      if (early.length > 0) socket.unshift(early);
      join(socket, stream);
    });
    outgoing.once('response', (answer) => {
      settle();
      on.onAnswer(answer.statusCode ?? 0);
      passRefusal(answer, socket, clock);
      answer.once('end', leave);
    });
    outgoing.end();
  }

  return (asked, forwarding, onAnswer) => {
    const { socket } = asked;
    // Node has let go of the connection; what ends it is told by its end.
    socket.on('error', () => socket.destroy());
    socket.setTimeout(idleTimeoutMs, () => resetSocket(socket));
    dig(asked, forwarding, onAnswer).catch((error: unknown) => {
      log.error({ err: error, port: forwarding.head.port }, 'an upgrade could not be passed on');
      resetSocket(socket);
    });
  };
}

function writeAgreement(socket: Socket, answer: IncomingMessage, asked: string): void {
  const { upgrade = asked } = answer.headers;
  const head = [...responseHead(answer, false), 'Connection', 'Upgrade', 'Upgrade', upgrade];
  socket.write(rawHead(101, answer.statusMessage ?? '', head), 'latin1');
}

/** Bytes both ways: the end of one direction leaves the other open, the break of one side breaks the other. */
function join(socket: Socket, connection: Duplex): void {
  socket.once('close', () => {
    if (!isOver(socket)) connection.destroy();
  });
  connection.once('close', () => {
    if (!isOver(connection)) resetSocket(socket);
  });
  socket.pipe(connection);
  connection.pipe(socket);
}

function isOver(stream: Duplex): boolean {
  return stream.readableEnded && stream.writableFinished;
}

/** Passes an answer that is no upgrade on as the last one of the connection. */
function passRefusal(answer: IncomingMessage, socket: Socket, clock: Clock): void {
  const head = [...responseHead(answer, false), 'Connection', 'close'];
  socket.write(rawHead(answer.statusCode ?? 0, answer.statusMessage ?? '', head), 'latin1');
  answer.on('error', () => resetSocket(socket));
  answer.once('close', () => {
    // Without a length the end of the connection is the end of the answer: a broken one must not end in order.
    if (!answer.complete) resetSocket(socket);
  });
  answer.once('end', () => closeAfterAnswer(socket, clock));
  answer.pipe(socket, { end: false });
}

/** Answers a request to upgrade itself, and ends the connection. */
export function writeRawAnswer(socket: Socket, answer: DataPlaneAnswer, clock: Clock): void {
  const head = [...Object.entries(headersOf(answer)).flat(), 'connection', 'close'];
  socket.write(rawHead(answer.status, STATUS_CODES[answer.status] ?? '', head) + answer.body);
  closeAfterAnswer(socket, clock);
}

function rawHead(status: number, message: string, head: readonly string[]): string {
  let text = `HTTP/1.1 ${status} ${message}\r\n`;
  for (let index = 0; index + 1 < head.length; index += 2) text += `${head[index]}: ${head[index + 1]}\r\n`;
  return `${text}\r\n`;
}
