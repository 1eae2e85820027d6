import type { ServerResponse } from 'node:http';
import { errorAnswer } from './errors.ts';

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
