import type { ServerResponse } from 'node:http';
import { errorPage, prefersHtml } from './error-page.ts';
import type { Family } from './routing.ts';

/** An answer of the data plane itself, before or instead of one of the sandbox. */
export interface DataPlaneAnswer {
  readonly status: number;
  readonly contentType: string | undefined;
  readonly body: string;
}

/** What can go wrong on the way to a sandbox. */
export type DataPlaneProblem =
  | { readonly kind: 'bad-routing'; readonly reason: string }
  /** Unknown or killed. */
  | { readonly kind: 'not-found' }
  /** Known, but not in a state that takes requests. */
  | { readonly kind: 'not-proxyable' }
  /** The port needs a token the request does not carry. */
  | { readonly kind: 'unauthorized' }
  /** Only a valid envd token resumes a secure sandbox by its port 49983. */
  | { readonly kind: 'not-awakened' }
  /** It is paused, and the resume the request asked for failed. */
  | { readonly kind: 'resume-failed' }
  /** The same for want of room. */
  | { readonly kind: 'resume-refused-by-limit' }
  /** The operator's extension did not allow it, or did not answer properly. What it said is for the owner alone. */
  | { readonly kind: 'resume-refused-by-extension' }
  | { readonly kind: 'resume-failed-by-extension' }
  | { readonly kind: 'resume-timed-out' }
  /** A path of port 49983 that only the platform may use. */
  | { readonly kind: 'reserved-path' }
  /** Nothing takes connections on the port. */
  | { readonly kind: 'port-closed'; readonly port: number }
  /** What listens there answered something that is not HTTP, or broke off before its answer. */
  | { readonly kind: 'no-answer'; readonly port: number }
  /** What listens there did not answer in time. */
  | { readonly kind: 'timed-out'; readonly port: number }
  /** The sandbox has as many connections from outside as it may have. */
  | { readonly kind: 'too-many-connections' }
  | { readonly kind: 'too-many-headers' };

/** Who asks: the family decides the words, the sandbox id is part of them, and browsers get a page. */
export interface Asker {
  readonly family: Family;
  readonly sandboxId: string;
  /** `Accept` of the request. */
  readonly accept: string | undefined;
}

/** The answer to `problem` in the family of the request (contract e2b.md section 7, agentenv.md section 15.4). */
export function answerTo(problem: DataPlaneProblem, asker: Asker): DataPlaneAnswer {
  return asker.family === 'e2b' ? e2bAnswer(problem, asker) : agentenvAnswer(problem);
}

function e2bAnswer(problem: DataPlaneProblem, { sandboxId, accept }: Asker): DataPlaneAnswer {
  const tell = (code: number, message: string, port?: number): DataPlaneAnswer => {
    const facts = { sandboxId, message, ...(port === undefined ? {} : { port }), code };
    if (!prefersHtml(accept)) return json(facts);
    return { status: code, contentType: 'text/html; charset=utf-8', body: errorPage(facts) };
  };
  switch (problem.kind) {
    case 'bad-routing':
      return text(400, problem.reason);
    case 'not-found':
    case 'not-proxyable':
      // Clients compare this text, and take the status for the end of the sandbox (T22).
      return tell(502, 'The sandbox was not found');
    case 'unauthorized':
      return tell(403, 'the traffic access token is missing or wrong');
    case 'not-awakened':
      return tell(403, 'a valid access token is needed to resume the sandbox');
    case 'resume-failed':
      return tell(502, 'The sandbox was not found');
    case 'resume-refused-by-limit':
      return tell(429, 'The sandbox could not be resumed: the host is full');
    case 'resume-refused-by-extension':
      return tell(502, 'The sandbox could not be resumed: the custom extension refused it');
    case 'resume-failed-by-extension':
      return tell(502, 'The sandbox could not be resumed: the custom extension failed');
    case 'resume-timed-out':
      return tell(504, 'The sandbox did not resume in time');
    case 'reserved-path':
      return json({ message: 'not found', code: 404 });
    case 'port-closed':
      return tell(502, 'The sandbox is running but port is not open', problem.port);
    case 'no-answer':
      return tell(502, 'The sandbox is running but the service on the port gave no proper answer', problem.port);
    case 'timed-out':
      return tell(504, 'The sandbox is running but the service on the port did not answer in time', problem.port);
    case 'too-many-connections':
      return tell(429, 'The sandbox has too many connections');
    case 'too-many-headers':
      return tell(431, 'The request has too many headers');
  }
}

function agentenvAnswer(problem: DataPlaneProblem): DataPlaneAnswer {
  switch (problem.kind) {
    case 'bad-routing':
      return text(400, problem.reason);
    case 'not-found':
      return text(404, 'sandbox not found');
    case 'not-proxyable':
      return text(410, 'sandbox is not proxyable in its current state');
    case 'unauthorized':
    case 'not-awakened':
      return empty(401);
    case 'resume-failed':
    case 'resume-refused-by-limit':
    case 'resume-refused-by-extension':
    case 'resume-failed-by-extension':
      return text(502, 'sandbox auto-resume failed');
    case 'resume-timed-out':
      return text(504, 'sandbox auto-resume timed out');
    case 'reserved-path':
      return json({ message: 'not found', code: 404 });
    case 'port-closed':
    case 'no-answer':
      return empty(502);
    case 'timed-out':
      return empty(504);
    case 'too-many-connections':
      return text(429, 'sandbox has too many connections');
    case 'too-many-headers':
      return text(431, 'too many headers');
  }
}

function json(body: {
  readonly code: number;
  readonly message: string;
  readonly [key: string]: unknown;
}): DataPlaneAnswer {
  return { status: body.code, contentType: 'application/json; charset=utf-8', body: JSON.stringify(body) };
}

function text(status: number, body: string): DataPlaneAnswer {
  return { status, contentType: 'text/plain; charset=utf-8', body };
}

function empty(status: number): DataPlaneAnswer {
  return { status, contentType: undefined, body: '' };
}

/** Its headers; readable from every origin, as those of envd are, and never kept by a cache. */
export function headersOf({ status, contentType, body }: DataPlaneAnswer): Record<string, string> {
  return {
    ...(contentType === undefined ? {} : { 'content-type': contentType, 'x-content-type-options': 'nosniff' }),
    ...(status === 429 ? { 'retry-after': '1' } : {}),
    'content-length': String(Buffer.byteLength(body)),
    'cache-control': 'no-store',
    'access-control-allow-origin': '*',
  };
}

/** Writes an answer of our own; does nothing when the client is gone. */
export function writeAnswer(response: ServerResponse, answer: DataPlaneAnswer): void {
  if (response.headersSent || response.destroyed) return;
  response.writeHead(answer.status, headersOf(answer));
  response.end(answer.body);
}
