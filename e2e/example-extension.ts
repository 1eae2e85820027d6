import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { resolve } from 'node:path';

/*
 * A custom extension to begin with (docs/custom-extension.md): it prints every hook, refuses sandboxes whose metadata says
 * `blocked: yes`, merges patches into the parameters, and knows how long every machine has run.
 *
 *   node e2e/example-extension.ts 9000
 *   AENV_CUSTOM_EXTENSION_URL=http://127.0.0.1:9000 ./aenv server
 */

interface HookBody {
  readonly sandboxId: string;
  readonly sandboxInstanceId?: string;
  readonly customExtensionParams?: Readonly<Record<string, unknown>>;
  readonly patch?: Readonly<Record<string, unknown>>;
  readonly metadata?: Readonly<Record<string, string>>;
}

interface Answer {
  readonly status: number;
  readonly body: unknown;
}

export interface ExampleExtension extends AsyncDisposable {
  readonly url: string;
  /** Milliseconds every machine ran that has stopped, by sandbox. */
  readonly used: ReadonlyMap<string, number>;
}

/** Requests of the server are small; whatever is larger does not come from it. */
const MAX_BODY = 1024 * 1024;

async function readBody(request: IncomingMessage): Promise<HookBody> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of request as AsyncIterable<Buffer>) {
    bytes += piece.byteLength;
    if (bytes > MAX_BODY) throw new Error('the body is too large');
    pieces.push(piece);
  }
  return JSON.parse(Buffer.concat(pieces).toString()) as HookBody;
}

/** Starts it on a loopback port, any free one for 0; `show` gets a line for every hook. */
export async function startExampleExtension(port: number, show: (line: string) => void): Promise<ExampleExtension> {
  const startedAt = new Map<string, number>();
  const params = new Map<string, Readonly<Record<string, unknown>>>();
  const used = new Map<string, number>();

  function answer(hook: string, body: HookBody): Answer {
    const { sandboxId, sandboxInstanceId = '' } = body;
    switch (hook) {
      case 'start-fresh':
      case 'start-resume':
        if (body.metadata?.blocked === 'yes') return { status: 403, body: { error: 'blocked by its metadata' } };
        startedAt.set(sandboxInstanceId, performance.now());
        params.set(sandboxId, body.customExtensionParams ?? {});
        return { status: 200, body: {} };
      case 'patch-params': {
        const customExtensionParams = { ...params.get(sandboxId), ...body.patch };
        params.set(sandboxId, customExtensionParams);
        return { status: 200, body: { customExtensionParams } };
      }
      case 'stop': {
        const started = startedAt.get(sandboxInstanceId);
        startedAt.delete(sandboxInstanceId);
        if (started !== undefined) used.set(sandboxId, (used.get(sandboxId) ?? 0) + performance.now() - started);
        return { status: 200, body: {} };
      }
      default:
        return { status: 404, body: { error: `no such hook: ${hook}` } };
    }
  }

  const server = createServer(async (request, response) => {
    const hook = (request.url ?? '').replace('/sandbox-hook/', '');
    let result: Answer;
    try {
      const body = await readBody(request);
      show(`${hook} ${JSON.stringify(body)}`);
      result = answer(hook, body);
    } catch (error) {
      result = { status: 400, body: { error: String(error) } };
    }
    response.writeHead(result.status, { 'content-type': 'application/json' }).end(JSON.stringify(result.body));
  });
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    used,
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

if (process.argv[1] !== undefined && resolve(process.argv[1]) === import.meta.filename) {
  const { url } = await startExampleExtension(Number(process.argv[2] ?? 9000), (line) => console.log(line));
  console.log(`listening on ${url}`);
}
