import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import type { Agent } from '@agentenv/agent';
import { rootProcess } from '@agentenv/agent/testing';
import { Sandbox } from 'e2b';
import { waitUntil } from '../../e2e/lib/wait.ts';
import { openBareHost } from '../lib/bare.ts';
import { startChild } from '../lib/child.ts';
import { runLoad } from '../lib/load-child.ts';
import type { Bench, Measured } from '../lib/row.ts';
import { ARTIFACTS, benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const PORT = 3000;
const BYTES = 32 * 2 ** 20;
const CONNECTIONS = 8;

/**
 * The data plane in front of a native guest agent, beside a client in the guest's own network that connects to the same
 * server: every process on the same two CPUs.
 */
async function native(effort: number): Promise<Measured[]> {
  await using front = await startChild(
    [process.execPath, join(import.meta.dirname, '../../packages/server/src/testing/ingress-process.ts')],
    'input',
  );
  const { port, host, pid } = JSON.parse(front.line) as { port: number; host: string; pid: number };
  const inside = ['nsenter', '--net', '--target', String(pid)];
  await using _service = await startChild(
    [...inside, process.execPath, join(import.meta.dirname, '../lib/proxy-service.ts'), String(PORT)],
    'SIGTERM',
  );
  const headers = { host: host.replace('PORT', String(PORT)) };
  const direct = (path: string, connections: number, seconds: number, upload?: number) =>
    runLoad(
      {
        ...{ urls: [`http://127.0.0.1:${PORT}${path}`], headers: {}, connections, seconds },
        ...(upload === undefined ? {} : { upload }),
      },
      inside,
    );
  const proxied = (path: string, connections: number, seconds: number, upload?: number) =>
    runLoad({
      ...{ urls: [`http://127.0.0.1:${port}${path}`], headers, connections, seconds },
      ...(upload === undefined ? {} : { upload }),
    });
  const rounds = Math.max(3, Math.round(5 * effort));
  const row = () => ({ samples: [] as number[], floor: [] as number[] });
  const [latency, rate, down, up] = [row(), row(), row(), row()];
  const megabytes = ({ perSecond }: { readonly perSecond: number }) => (perSecond * BYTES) / 1e6;
  await proxied('/', 1, 1);
  for (let round = 0; round < rounds; round++) {
    latency.floor.push(...(await direct('/', 1, 1)).latencies);
    latency.samples.push(...(await proxied('/', 1, 1)).latencies);
    rate.floor.push((await direct('/', CONNECTIONS, 1)).perSecond);
    rate.samples.push((await proxied('/', CONNECTIONS, 1)).perSecond);
    down.floor.push(megabytes(await direct(`/?bytes=${BYTES}`, 1, 1)));
    down.samples.push(megabytes(await proxied(`/?bytes=${BYTES}`, 1, 1)));
    up.floor.push(megabytes(await direct('/', 1, 1, BYTES)));
    up.samples.push(megabytes(await proxied('/', 1, 1, BYTES)));
  }
  const figure = (name: string, unit: string, { samples, floor }: typeof latency, budget: string) => ({
    ...{ name, unit, samples, floor, budget },
  });
  return [
    {
      ...figure('port of a native guest, GET', 'ms', latency, '≤ floor + 3 ms'),
      ok: ({ p50, floor }) => p50 <= floor + 3,
    },
    {
      ...figure(`the same, ${CONNECTIONS} connections`, 'req/s', rate, '≥ 0.1 × floor'),
      ok: ({ ratio }) => ratio >= 0.1,
    },
    { ...figure('the same, download', 'MB/s', down, '≥ 0.1 × floor'), ok: ({ ratio }) => ratio >= 0.1 },
    { ...figure('the same, upload', 'MB/s', up, '≥ 0.1 × floor'), ok: ({ ratio }) => ratio >= 0.1 },
  ];
}

/** What the proxy has to do at least: connect through the raw agent, ask, read the answer to its end. */
async function askRaw(agent: Agent): Promise<void> {
  const connection = await agent.connectPort(PORT);
  connection.write(`GET / HTTP/1.1\r\nHost: localhost:${PORT}\r\nConnection: close\r\n\r\n`);
  connection.resume();
  await once(connection, 'end');
  connection.end();
}

async function ask(url: URL, host: string): Promise<number> {
  const outgoing = get(url, { headers: { host } });
  const [answer] = (await once(outgoing, 'response')) as [IncomingMessage];
  answer.resume();
  await once(answer, 'end');
  return answer.statusCode ?? 0;
}

/** The whole product in front of a microVM, beside the same request through the raw agent of another. */
async function microvm(effort: number): Promise<Measured[]> {
  const samples = Math.max(20, Math.round(100 * effort));
  await using server = await benchServer(`${NO_POOL}\nsandbox_proxy.domains = ["sandboxes.test"]`);
  await using bare = await openBareHost(server.home, ARTIFACTS);
  await using machine = await bare.restore();
  const source = await readFile(join(import.meta.dirname, '../../e2e/lib/sandbox-service.mjs'), 'utf8');
  const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000 });
  await sandbox.files.write('service.mjs', source);
  await sandbox.commands.run('node service.mjs', { background: true, timeoutMs: 0 });
  const rawService = await machine.agent.spawn(rootProcess(['node', '--input-type=module', '-e', source]));
  rawService.onOutput(() => undefined);
  // The machine is taken away with it running.
  rawService.exit.catch(() => undefined);
  const url = new URL(server.url);
  const host = sandbox.getHost(PORT);
  await waitUntil(async () => (await ask(url, host)) === 200, { timeout: 120_000, what: 'the service in the sandbox' });
  await waitUntil(
    () =>
      askRaw(machine.agent).then(
        () => true,
        () => false,
      ),
    { timeout: 120_000, what: 'the service in the bare machine' },
  );
  const floor: number[] = [];
  const asked = await repeat(samples, async () => {
    floor.push((await timed(() => askRaw(machine.agent))).ms);
    return (await timed(() => ask(url, host))).ms;
  });
  await sandbox.kill();
  return [
    {
      ...{ name: 'port of a microVM, GET, beside the raw agent', unit: 'ms', samples: asked, floor },
      budget: '≤ 1.25 × floor + 3 ms',
      ok: ({ p50, floor: bareMs }) => p50 <= 1.25 * bareMs + 3,
    },
  ];
}

/** What the way through the data plane costs. */
export const proxy: Bench = {
  name: 'proxy',
  what: 'a server in a sandbox reached from outside, beside a direct connection (native guest) and the raw agent (microVM)',
  run: async ({ effort }) => [...(await native(effort)), ...(await microvm(effort))],
};
