import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type RecordedHook = 'start-fresh' | 'start-resume' | 'patch-params' | 'stop';

/** One request as it arrived. */
export interface HookCall {
  readonly hook: RecordedHook;
  readonly path: string;
  readonly body: Readonly<Record<string, unknown>>;
}

/** What it answers; `hang`: nothing until it is closed. A function may do as it likes with the connection. */
export type HookAnswer =
  | { readonly status: number; readonly body?: unknown; readonly headers?: Readonly<Record<string, string>> }
  | 'hang'
  | ((request: IncomingMessage, response: ServerResponse, call: HookCall) => void);

/** A custom extension that notes what it is told and answers as a test wants; a real HTTP server. */
export interface RecordingExtension extends AsyncDisposable {
  readonly url: string;
  readonly calls: HookCall[];
  /** Calls of one hook. */
  of(hook: RecordedHook): readonly HookCall[];
  /** From now on; without one it answers 200 `{}`. Answers of a list are used one after another, then 200 again. */
  answer(hook: RecordedHook, answer: HookAnswer | readonly HookAnswer[]): void;
  /** Forgets calls and answers; what hangs is answered 200. */
  reset(): void;
}

export async function startRecordingExtension(): Promise<RecordingExtension> {
  const calls: HookCall[] = [];
  const answers = new Map<string, HookAnswer | HookAnswer[]>();
  const hanging = new Set<ServerResponse>();

  function nextAnswer(hook: string): HookAnswer | undefined {
    const planned = answers.get(hook);
    return Array.isArray(planned) ? planned.shift() : planned;
  }

  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      const hook = (request.url ?? '').split('/').at(-1) as RecordedHook;
      const body = JSON.parse(Buffer.concat(pieces).toString()) as HookCall['body'];
      const call = { hook, path: request.url ?? '', body };
      calls.push(call);
      const answer = nextAnswer(hook) ?? { status: 200, body: {} };
      if (typeof answer === 'function') return answer(request, response, call);
      if (answer === 'hang') {
        hanging.add(response);
        return;
      }
      response.writeHead(answer.status, { 'content-type': 'application/json', ...answer.headers });
      response.end(typeof answer.body === 'string' ? answer.body : JSON.stringify(answer.body ?? {}));
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;

  return {
    url: `http://127.0.0.1:${port}`,
    calls,
    of: (hook) => calls.filter((call) => call.hook === hook),
    answer: (hook, answer) => answers.set(hook, Array.isArray(answer) ? [...answer] : (answer as HookAnswer)),
    reset() {
      calls.length = 0;
      answers.clear();
      for (const response of hanging) response.writeHead(200).end('{}');
      hanging.clear();
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
