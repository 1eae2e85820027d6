import { type ClientRequest, request as httpRequest, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http';

export interface Answer {
  readonly status: number;
  readonly message: string;
  readonly headers: IncomingMessage['headers'];
  readonly rawHeaders: readonly string[];
  readonly rawTrailers: readonly string[];
  readonly body: Buffer;
}

export interface SendOptions {
  readonly method?: string;
  readonly headers?: OutgoingHttpHeaders | readonly string[];
  readonly body?: string | Uint8Array;
}

/** One request to 127.0.0.1 on a connection of its own, its answer read to the end. */
export async function send(port: number, path: string, options: SendOptions = {}): Promise<Answer> {
  const outgoing = start(port, path, options);
  outgoing.end(options.body);
  return await readAnswer(await responseOf(outgoing));
}

/** The same, not ended yet. */
export function start(port: number, path: string, { method = 'GET', headers = {} }: SendOptions = {}): ClientRequest {
  return httpRequest({ host: '127.0.0.1', port, path, method, headers, agent: false });
}

/** Waits for the head of an answer. */
export function responseOf(outgoing: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    outgoing.once('response', resolve);
    outgoing.on('error', reject);
  });
}

/** Reads an answer to its end; rejects when it breaks off. */
export async function readAnswer(response: IncomingMessage): Promise<Answer> {
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  return {
    status: response.statusCode ?? 0,
    message: response.statusMessage ?? '',
    headers: response.headers,
    rawHeaders: response.rawHeaders,
    rawTrailers: response.rawTrailers,
    body: Buffer.concat(chunks),
  };
}
