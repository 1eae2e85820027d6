import { request as httpRequest, type IncomingHttpHeaders, type OutgoingHttpHeaders } from 'node:http';

/** Access token of every service under test. */
export const TOKEN = 'an-access-token';

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
}

export interface RequestOptions {
  readonly method?: string;
  readonly headers?: OutgoingHttpHeaders;
  readonly body?: string | Uint8Array | AsyncIterable<Uint8Array>;
  readonly signal?: AbortSignal;
}

/** One request with the token on a connection of its own, its answer read to the end. */
export async function sendRequest(port: number, path: string, options: RequestOptions = {}): Promise<Answer> {
  const { method = 'GET', headers, body, signal } = options;
  return await new Promise((resolve, reject) => {
    const request = httpRequest(
      {
        port,
        host: '127.0.0.1',
        path,
        method,
        agent: false,
        headers: { 'x-access-token': TOKEN, ...headers },
        ...(signal === undefined ? {} : { signal }),
      },
      (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(chunks) }),
        );
      },
    );
    request.on('error', reject);
    if (body === undefined || typeof body === 'string' || body instanceof Uint8Array) request.end(body);
    else void sendBody(request, body).catch(reject);
  });
}

async function sendBody(request: ReturnType<typeof httpRequest>, body: AsyncIterable<Uint8Array>): Promise<void> {
  for await (const chunk of body) {
    if (request.destroyed) return;
    if (!request.write(chunk)) await new Promise<void>((resolve) => request.once('drain', resolve));
  }
  request.end();
}
