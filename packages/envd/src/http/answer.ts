import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '@agentenv/core';
import { errorAnswer } from './errors.ts';

/** Request bytes that are read and dropped after an early answer, so that the client gets to see it. */
const MAX_DISCARDED_BYTES = 16 * 1024 * 1024;
const MAX_DISCARD_MS = 10_000;

/** Sends a JSON answer; does nothing when an answer has begun or the client is gone. */
export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  if (response.headersSent || response.destroyed) return;
  const bytes = Buffer.from(JSON.stringify(body), 'utf8');
  response.writeHead(status, {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': bytes.byteLength,
  });
  response.end(bytes);
}

/** Answers anything caught; a response that has begun is broken off, because its client must not take it as whole. */
export function sendError(response: ServerResponse, caught: unknown): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const { status, body } = errorAnswer(caught);
  sendJson(response, status, body);
}

/**
 * Bounds what a client may still send after it was answered: up to 16 MiB and 10 s are read and dropped, then the
 * connection is closed.
 */
export function limitUnreadBody(request: IncomingMessage, response: ServerResponse, clock: Clock): void {
  // A request whose reading has begun is left to us; otherwise Node would discard the rest without limit.
  request.read(0);
  response.once('finish', () => {
    if (request.complete) return;
    const { socket } = request;
    let discarded = 0;
    const timer = clock.timer(MAX_DISCARD_MS, () => socket.destroy());
    request.on('data', (chunk: Buffer) => {
      discarded += chunk.length;
      if (discarded > MAX_DISCARDED_BYTES) socket.destroy();
    });
    request.once('close', () => timer[Symbol.dispose]());
    request.resume();
  });
}
