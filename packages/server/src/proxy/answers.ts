import type { ServerResponse } from 'node:http';
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
  /** A path of port 49983 that only the platform may use. */
  | { readonly kind: 'reserved-path' }
  | { readonly kind: 'ingress-not-built'; readonly port: number };

/** The answer to `problem` in the family of the request (contract e2b.md section 7, agentenv.md section 15.4). */
export function answerTo(problem: DataPlaneProblem, family: Family, sandboxId: string): DataPlaneAnswer {
  return family === 'e2b' ? e2bAnswer(problem, sandboxId) : agentenvAnswer(problem);
}

function e2bAnswer(problem: DataPlaneProblem, sandboxId: string): DataPlaneAnswer {
  switch (problem.kind) {
    case 'bad-routing':
      return text(400, problem.reason);
    case 'not-found':
    case 'not-proxyable':
      // Clients compare this text, and take the status for the end of the sandbox (T22).
      return json({ sandboxId, message: 'The sandbox was not found', code: 502 });
    case 'unauthorized':
      return json({ sandboxId, message: 'the traffic access token is missing or wrong', code: 403 });
    case 'reserved-path':
      return json({ message: 'not found', code: 404 });
    case 'ingress-not-built':
      return json({ sandboxId, message: 'not implemented: ingress', port: problem.port, code: 501 });
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
      return { status: 401, contentType: undefined, body: '' };
    case 'reserved-path':
      return json({ message: 'not found', code: 404 });
    case 'ingress-not-built':
      return text(501, 'not implemented: ingress');
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

/** Writes an answer of our own; readable from every origin, as those of envd are. */
export function writeAnswer(response: ServerResponse, { status, contentType, body }: DataPlaneAnswer): void {
  response.writeHead(status, {
    ...(contentType === undefined ? {} : { 'content-type': contentType }),
    'content-length': Buffer.byteLength(body),
    'access-control-allow-origin': '*',
  });
  response.end(body);
}
