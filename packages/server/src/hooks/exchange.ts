import { request as requestHttp } from 'node:http';
import { request as requestHttps } from 'node:https';

/** Bytes of an error's body that are kept for the message. */
const MAX_ERROR_BYTES = 4 * 1024;

export interface Exchange {
  readonly url: URL;
  /** JSON text. */
  readonly body: string;
  /** Headers beside those every request has. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Whether the body of a successful answer matters; one that does not is not read. */
  readonly answer: 'read' | 'ignored';
  /** Largest successful answer that is read, bytes. */
  readonly maxBytes: number;
}

export interface Answered {
  readonly status: number;
  /** Of an answer that is not 2xx its first 4 KiB; empty when it was ignored. */
  readonly text: string;
}

/**
 * One POST on a connection of its own: a kept one may have been closed by the other side by the time it is used, and there
 * is no second attempt. Redirects are not followed. Rejects when there is no answer, or a successful one that is too large.
 */
export function exchange({ url, body, headers, answer, maxBytes }: Exchange, signal: AbortSignal): Promise<Answered> {
  const { promise, resolve, reject } = Promise.withResolvers<Answered>();
  const payload = Buffer.from(body);
  const options = {
    method: 'POST',
    agent: false,
    signal,
    headers: {
      ...headers,
      'content-type': 'application/json',
      'content-length': payload.byteLength,
      accept: 'application/json',
      'user-agent': 'agentenv',
      connection: 'close',
    },
  } as const;
  const sent = url.protocol === 'https:' ? requestHttps(url, options) : requestHttp(url, options);
  sent.on('error', reject);
  sent.on('response', (response) => {
    const status = response.statusCode ?? 0;
    const success = status >= 200 && status < 300;
    const limit = success ? maxBytes : MAX_ERROR_BYTES;
    const pieces: Buffer[] = [];
    let bytes = 0;
    const finish = (): void => {
      // What has been received is all that matters; the other side may go on sending forever.
      sent.destroy();
      resolve({ status, text: Buffer.concat(pieces).subarray(0, limit).toString() });
    };
    if (success && answer === 'ignored') return finish();
    response.on('error', reject);
    response.on('data', (piece: Buffer) => {
      pieces.push(piece);
      bytes += piece.byteLength;
      if (bytes <= limit) return;
      if (success) sent.destroy(new Error(`the answer has more than ${limit} bytes`));
      else finish();
    });
    response.on('end', finish);
    response.on('close', () => {
      if (!response.complete) reject(new Error('the answer broke off'));
    });
  });
  sent.end(payload);
  return promise;
}
