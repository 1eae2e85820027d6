import { Agent, get } from 'node:http';

/** Requests per second over `connections` kept-alive connections; run in a process of its own by `load-process.ts`. */
export async function loadRate(options: {
  readonly urls: readonly string[];
  readonly headers: Record<string, string>;
  readonly connections: number;
  readonly seconds: number;
}): Promise<{ readonly perSecond: number; readonly latencies: readonly number[] }> {
  const agent = new Agent({ keepAlive: true, maxSockets: options.connections });
  const latencies: number[] = [];
  let next = 0;
  const once = () =>
    new Promise<void>((resolve, reject) => {
      const start = performance.now();
      const url = options.urls[next++ % options.urls.length] ?? '';
      get(url, { agent, headers: options.headers }, (response) => {
        if (response.statusCode !== 200) reject(new Error(`${url} answered ${response.statusCode}`));
        response.resume();
        response.on('end', () => {
          latencies.push(performance.now() - start);
          resolve();
        });
      }).on('error', reject);
    });
  const start = performance.now();
  const end = start + options.seconds * 1000;
  await Promise.all(
    Array.from({ length: options.connections }, async () => {
      while (performance.now() < end) await once();
    }),
  );
  const seconds = (performance.now() - start) / 1000;
  agent.destroy();
  return { perSecond: latencies.length / seconds, latencies };
}
