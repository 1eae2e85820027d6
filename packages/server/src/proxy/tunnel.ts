import { request as httpRequest, type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { resetSocket } from '@agentenv/envd';
import { answerTo, type DataPlaneAnswer, type DataPlaneProblem, headersOf } from './answers.ts';
import { closeSoon, type Forwarding, type ForwardingOptions, LINGER_MS, MAX_ANSWER_HEAD_BYTES } from './exchange.ts';
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

export function createTunnel({ clock, open, idleTimeoutMs }: ForwardingOptions): Tunnel {
  async function dig(asked: UpgradeRequest, forwarding: Forwarding, onAnswer: (status: number) => void): Promise<void> {
    const { socket } = asked;
    const { port } = forwarding.head;
    const refuse = (problem: DataPlaneProblem): void => {
      const answer = answerTo(problem, forwarding.asker);
      onAnswer(answer.status);
      writeRawAnswer(socket, answer);
    };
    const gone = new AbortController();
    socket.once('close', () => gone.abort());
    const outcome = await open(forwarding.target, port, gone.signal);
    if (outcome.kind !== 'connected') {
      refuse(outcome);
      return;
    }
    const { connection } = outcome;
    if (socket.destroyed) {
      connection.destroy();
      return;
    }
    const abandon = (): void => {
      connection.destroy();
    };
    let isAnswered = false;
    /** Ends the wait for an answer; false when it was over already. */
    const settle = (): boolean => {
      timer[Symbol.dispose]();
      const isFirst = !isAnswered;
      isAnswered = true;
      return isFirst;
    };
    const fail = (problem: DataPlaneProblem): void => {
      if (settle()) refuse(problem);
      abandon();
    };
    const timer = clock.timer(HANDSHAKE_TIMEOUT_MS, () => fail({ kind: 'timed-out', port }));
    socket.once('close', abandon);
    const outgoing = httpRequest({
      method: asked.request.method ?? 'GET',
      path: forwarding.url,
      headers: requestHead(asked.request, forwarding.head),
      setDefaultHeaders: false,
      createConnection: () => connection,
      maxHeaderSize: MAX_ANSWER_HEAD_BYTES,
    });
    outgoing.maxHeadersCount = 0;
    outgoing.on('error', () => fail({ kind: 'no-answer', port }));
    outgoing.once('upgrade', (answer, _connection, first) => {
      settle();
      onAnswer(101);
      // From here on the client may end its side and still get what comes.
      socket.off('close', abandon);
      writeAgreement(asked, answer);
      if (first.length > 0) connection.unshift(first);
      join(asked, connection);
    });
    outgoing.once('response', (answer) => {
      settle();
      onAnswer(answer.statusCode ?? 0);
      passRefusal(answer, socket);
      answer.once('end', () => closeSoon(clock, connection));
    });
    outgoing.end();
  }

  return (asked, forwarding, onAnswer) => {
    const { socket } = asked;
    // Node has let go of the connection; what ends it is told by its end.
    socket.on('error', () => socket.destroy());
    socket.setTimeout(idleTimeoutMs, () => resetSocket(socket));
    // It fails when the client left meanwhile; a fault of ours ends the connection as well.
    dig(asked, forwarding, onAnswer).catch(() => resetSocket(socket));
  };
}

function writeAgreement({ request, socket }: UpgradeRequest, answer: IncomingMessage): void {
  const upgrade = answer.headers.upgrade ?? request.headers.upgrade ?? '';
  const head = [...responseHead(answer, false), 'Connection', 'Upgrade', 'Upgrade', upgrade];
  socket.write(rawHead(101, answer.statusMessage ?? '', head), 'latin1');
}

/** Bytes both ways: the end of one direction leaves the other open, the break of one side breaks the other. */
function join({ socket, early }: UpgradeRequest, connection: Duplex): void {
  socket.once('close', () => {
    if (!isOver(socket)) connection.destroy();
  });
  connection.once('close', () => {
    if (!isOver(connection)) resetSocket(socket);
  });
  if (early.length > 0) socket.unshift(early);
  socket.pipe(connection);
  connection.pipe(socket);
}

function isOver(stream: Duplex): boolean {
  return stream.readableEnded && stream.writableFinished;
}

/** Passes an answer that is no upgrade on as the last one of the connection. */
function passRefusal(answer: IncomingMessage, socket: Socket): void {
  const head = [...responseHead(answer, false), 'Connection', 'close'];
  socket.write(rawHead(answer.statusCode ?? 0, answer.statusMessage ?? '', head), 'latin1');
  answer.on('error', () => resetSocket(socket));
  answer.once('close', () => {
    // Without a length the end of the connection is the end of the answer: a broken one must not end in order.
    if (!answer.complete) resetSocket(socket);
  });
  answer.once('end', () => leave(socket));
  answer.pipe(socket);
}

function writeRawAnswer(socket: Socket, answer: DataPlaneAnswer): void {
  const head = [...Object.entries(headersOf(answer)).flat(), 'connection', 'close'];
  socket.end(rawHead(answer.status, STATUS_CODES[answer.status] ?? '', head) + answer.body);
  leave(socket);
}

/** Lets the client read the last answer: a connection closed with bytes unread would be reset under it. */
function leave(socket: Socket): void {
  socket.setTimeout(LINGER_MS);
  socket.resume();
}

function rawHead(status: number, message: string, head: readonly string[]): string {
  let text = `HTTP/1.1 ${status} ${message}\r\n`;
  for (let index = 0; index + 1 < head.length; index += 2) text += `${head[index]}: ${head[index + 1]}\r\n`;
  return `${text}\r\n`;
}
