import { once } from 'node:events';
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';

const CHUNK = Buffer.alloc(64 * 1024, 0x61);

export interface LoadOptions {
  readonly urls: readonly string[];
  readonly headers: Record<string, string>;
  readonly connections: number;
  readonly seconds: number;
  /** Bytes sent with each request, which is a POST then. */
  readonly upload?: number;
}

/** Requests per second over `connections` kept-alive connections; run in a process of its own by `load-process.ts`. */
export async function loadRate(
  options: LoadOptions,
): Promise<{ readonly perSecond: number; readonly latencies: readonly number[] }> {
  const { upload } = options;
  const agent = new Agent({ keepAlive: true, maxSockets: options.connections });
  const method = upload === undefined ? 'GET' : 'POST';
  const headers = { ...options.headers, ...(upload === undefined ? {} : { 'content-length': String(upload) }) };
  const latencies: number[] = [];
  let next = 0;
  const ask = async () => {
    const start = performance.now();
    const url = options.urls[next++ % options.urls.length] ?? '';
    const outgoing = request(url, { method, agent, headers });
    const answering = once(outgoing, 'response');
    await Promise.all([send(outgoing, upload ?? 0), answering]);
    const [response] = (await answering) as [IncomingMessage];
    if (response.statusCode !== 200) throw new Error(`${url} answered ${response.statusCode}`);
    response.resume();
    await once(response, 'end');
    latencies.push(performance.now() - start);
  };
  const start = performance.now();
  const end = start + options.seconds * 1000;
  await Promise.all(
    Array.from({ length: options.connections }, async () => {
      while (performance.now() < end) await ask();
    }),
  );
  const seconds = (performance.now() - start) / 1000;
  agent.destroy();
  return { perSecond: latencies.length / seconds, latencies };
}

async function send(outgoing: ClientRequest, bytes: number): Promise<void> {
  for (let left = bytes; left > 0; left -= CHUNK.length) {
    if (!outgoing.write(left < CHUNK.length ? CHUNK.subarray(0, left) : CHUNK)) await once(outgoing, 'drain');
  }
  outgoing.end();
}
