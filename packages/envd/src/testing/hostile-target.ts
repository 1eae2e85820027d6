import { gzipSync } from 'node:zlib';
import { expect } from 'vitest';
import { type Answer, type RequestOptions, sendRequest } from './http-client.ts';
import { startMeasuredEnvd } from './measured-envd.ts';
import { createRpcClient, type RpcClient, summarise } from './rpc-client.ts';

/** By how much something hostile may make the service grow, bytes. */
const MAX_GROWTH_BYTES = 64 * 1024 * 1024;

/** A service to be hostile to. */
export interface Target {
  readonly port: number;
  readonly rpc: RpcClient;
  send(path: string, options: RequestOptions): Promise<Answer>;
  /** Fails unless an ordinary command runs. */
  stillWorks(): Promise<void>;
}

export function targetAt(port: number): Target {
  const rpc = createRpcClient(port);
  return {
    port,
    rpc,
    send: (path, options) => sendRequest(port, path, options),
    async stillWorks() {
      await using stream = await rpc.stream('process.Process/Start', { process: { cmd: 'echo', args: ['ok'] } });
      expect(summarise(await stream.rest()).stdout).toBe('ok\n');
    },
  };
}

/**
 * Runs something hostile against a process of its own and holds that to its memory at its highest: what one run leaves
 * behind must not raise the level the next one is measured from.
 */
export async function inBoundedMemory(act: (target: Target) => Promise<void>): Promise<void> {
  await using measured = await startMeasuredEnvd();
  const own = targetAt(measured.port);
  // Code that is loaded and compiled at its first use is not what the growth is about.
  await own.stillWorks();
  await own.send('/files?path=/tmp/warm', {
    method: 'POST',
    headers: { 'content-type': 'application/octet-stream', 'content-encoding': 'gzip' },
    body: gzipSync('x'),
  });
  await measured.setBaseline();
  await act(own);
  expect(await measured.peakGrowth()).toBeLessThan(MAX_GROWTH_BYTES);
  await own.stillWorks();
}
