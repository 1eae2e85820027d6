import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import { createExec, createFakeInternet, type FakeInternet, INTERNET } from '@agentenv/runtime/testing';
import { Sandbox } from 'e2b';
import { Sandbox as OlderSandbox } from 'e2b-2-10';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startServer, type TestServer } from './lib/server.ts';

let server: TestServer;
let internet: FakeInternet;
let open: Sandbox;
let closed: Sandbox;
beforeAll(async () => {
  server = await startServer({ config: `network.dns_servers = ["${INTERNET.dns}"]` });
  const namespaces = join(server.runtime, 'netns');
  const gateway = readdirSync(namespaces).find((name) => name.endsWith('-gateway'));
  if (gateway === undefined) throw new Error(`no gateway namespace in ${namespaces}`);
  internet = await createFakeInternet({
    exec: createExec({ clock: createRealClock() }),
    path: join(namespaces, 'e2e-internet'),
    behind: join(namespaces, gateway),
  });
  open = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000 });
  closed = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000, allowInternetAccess: false });
});
afterAll(async () => {
  await open.kill();
  await closed.kill();
  await internet[Symbol.asyncDispose]();
  await server.stop();
  await server[Symbol.asyncDispose]();
});

const output = async (sandbox: Pick<Sandbox, 'commands'>, command: string) => {
  const result = await sandbox.commands.run(`${command} 2>&1 || echo "failed with $?"`, { timeoutMs: 60_000 });
  return result.stdout.trim();
};

describe('a sandbox with internet', () => {
  it('resolves names and fetches with curl through NAT', async () => {
    const body = await output(open, 'curl -sS --max-time 30 http://package.example/');
    expect(JSON.parse(body)).toEqual({ local: INTERNET.web, remote: internet.seenAs.ipv4 });
  });

  it('fetches over IPv6', async () => {
    const body = await output(open, `curl -sS --max-time 30 'http://[${INTERNET.web6}]/'`);
    expect(JSON.parse(body)).toEqual({ local: INTERNET.web6, remote: internet.seenAs.ipv6 });
  });

  it('reaches hosts the way pip (Python) and npm (Node) do', async () => {
    const python = `python3 -c 'import urllib.request; print(urllib.request.urlopen("http://pip.example/", timeout=30).read().decode())'`;
    expect(JSON.parse(await output(open, python))).toMatchObject({ local: INTERNET.web });
    const node = `node -e 'fetch("http://npm.example/").then((r) => r.text()).then(console.log)'`;
    expect(JSON.parse(await output(open, node))).toMatchObject({ local: INTERNET.web });
  });

  it('never reaches private ranges, link-local metadata or its gateway beyond DNS, and is told at once', async () => {
    for (const address of [...INTERNET.private.filter((ip) => !ip.includes(':')), '169.254.0.21']) {
      const probe = await output(
        open,
        `curl -sS --max-time 20 -o /dev/null -w '%{http_code} %{time_total}' http://${address}/`,
      );
      expect(probe, address).toMatch(/failed with 7/);
    }
    const arrived = await internet.arrivals();
    expect(arrived.filter(({ local }) => (INTERNET.private as readonly string[]).includes(local))).toEqual([]);
  });
});

describe('allow_internet_access: false', () => {
  it('means off, DNS included, and is refused fast', async () => {
    await internet.arrivals();
    const start = performance.now();
    expect(await output(closed, `curl -sS --max-time 20 http://${INTERNET.web}/`)).toMatch(/failed with 7/);
    expect(await output(closed, 'getent hosts package.example')).toMatch(/failed with 2/);
    expect(await output(closed, `curl -sS --max-time 20 'http://[${INTERNET.web6}]/'`)).toMatch(/failed with 7/);
    expect(performance.now() - start).toBeLessThan(30_000);
    expect(await internet.arrivals()).toEqual([]);
    expect((await closed.commands.run('echo works otherwise')).stdout).toBe('works otherwise\n');
  });

  it('is reported by the API', async () => {
    const detail = async (sandbox: Sandbox) => (await server.api(`/sandboxes/${sandbox.sandboxId}`)).json();
    expect(await detail(closed)).toMatchObject({ allowInternetAccess: false });
  });
});

describe('replacing the rules of a running sandbox', () => {
  const fetched = /"local":/;
  const refused = /failed with 7/;
  const get = (sandbox: Pick<Sandbox, 'commands'>, host: string) =>
    output(sandbox, `curl -sS --max-time 20 http://${host.includes(':') ? `[${host}]` : host}/`);

  it('takes effect at once through the SDK, is kept over a pause, and an empty one clears it', async () => {
    await open.updateNetwork({ denyOut: ['128.0.0.0/1', INTERNET.web6], allowOut: [INTERNET.other] });
    expect(await get(open, INTERNET.web)).toMatch(refused);
    expect(await get(open, INTERNET.web6)).toMatch(refused);
    expect(await get(open, INTERNET.other)).toMatch(fetched);
    expect(await get(open, INTERNET.other6)).toMatch(fetched);
    await open.pause();
    await expect(open.updateNetwork({})).rejects.toThrow('409');
    await Sandbox.connect(open.sandboxId, { ...server.sdk, timeoutMs: 600_000 });
    expect(await get(open, INTERNET.web)).toMatch(refused);
    await open.updateNetwork({});
    expect(await get(open, INTERNET.web)).toMatch(fetched);
    expect(await get(open, INTERNET.web6)).toMatch(fetched);
  });

  it('counts for a sandbox of an older SDK too, which has no call of its own for it', async () => {
    const older = await OlderSandbox.create('base', { ...server.sdk, timeoutMs: 600_000 });
    try {
      const body = JSON.stringify({ allow_internet_access: false, allowOut: [INTERNET.web] });
      const headers = { 'content-type': 'application/json' };
      const response = await server.api(`/sandboxes/${older.sandboxId}/network`, { method: 'PUT', body, headers });
      expect(response.status).toBe(204);
      const fetchIn = async (host: string) =>
        (await older.commands.run(`curl -sS --max-time 20 http://${host}/ 2>&1 || echo "failed with $?"`)).stdout;
      expect(await fetchIn(INTERNET.web)).toMatch(fetched);
      expect(await fetchIn(INTERNET.other)).toMatch(refused);
    } finally {
      await older.kill();
    }
  });
});
