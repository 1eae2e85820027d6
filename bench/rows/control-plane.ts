import { join } from 'node:path';
import { startChild } from '../lib/child.ts';
import { runLoad } from '../lib/load-child.ts';
import type { Bench } from '../lib/row.ts';
import { benchServer } from '../lib/session.ts';

const CONNECTIONS = 8;

/** Requests per second of one load process over eight connections. */
async function load(urls: readonly string[], headers: Record<string, string>, seconds: number): Promise<number> {
  return (await runLoad({ urls, headers, connections: CONNECTIONS, seconds })).perSecond;
}

/** GET of one record among 10 000. */
export const controlPlane: Bench = {
  name: 'get',
  what: 'GET /sandboxes/{id} with 10 000 records and 8 connections, beside fastify returning a constant',
  async run({ progress, effort }) {
    const records = 10_000;
    // The fake backend makes the records; 10 000 of them are not limited by memory and disk that are never used.
    await using server = await benchServer(
      'backend = "fake"\norchestrator.memory_commit_ratio = 0.000001\norchestrator.disk_commit_ratio = 0',
    );
    const urls: string[] = [];
    const body = JSON.stringify({ templateID: 'base', timeout: 3600 });
    const headers = { 'content-type': 'application/json' };
    await Promise.all(
      Array.from({ length: 16 }, async () => {
        while (urls.length < records) {
          const response = await server.api('/v2/sandboxes', { method: 'POST', body, headers });
          if (response.status !== 201) throw new Error(`create answered ${response.status}: ${await response.text()}`);
          const { sandboxID } = (await response.json()) as { sandboxID: string };
          urls.push(`${server.url}/sandboxes/${sandboxID}`);
        }
      }),
    );
    progress(`${urls.length} records`);
    const constant = [process.execPath, join(import.meta.dirname, '../lib/constant-server.ts')];
    await using floorServer = await startChild(constant, 'SIGTERM');
    const samples: number[] = [];
    const floor: number[] = [];
    const rounds = Math.max(3, Math.round(5 * effort));
    for (let round = 0; round < rounds; round++) {
      floor.push(await load([floorServer.line], {}, 2));
      samples.push(await load(urls, { 'x-api-key': server.apiKey }, 2));
    }
    return [
      {
        name: 'GET /sandboxes/{id}',
        unit: 'req/s',
        samples,
        floor,
        budget: '≥ 0.5 × floor',
        ok: ({ ratio }) => ratio >= 0.5,
      },
    ];
  },
};
