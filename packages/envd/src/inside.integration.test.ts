import { randomBytes } from 'node:crypto';
import type { Agent } from '@agentenv/agent';
import { rootProcess, testClock } from '@agentenv/agent/testing';
import { type Log, SILENT_LOG } from '@agentenv/core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createEnvd, type EnvdOptions } from './service.ts';
import { type EnvdFixture, startEnvd } from './testing/envd-fixture.ts';
import { TOKEN } from './testing/http-client.ts';
import { createProcessDriver, finish, type ProcessDriver } from './testing/process-driver.ts';
import { createRpcClient } from './testing/rpc-client.ts';

let envd: EnvdFixture;
let driver: ProcessDriver;
beforeAll(async () => {
  envd = await startEnvd({ envVars: { A: 'b' } });
  driver = createProcessDriver(createRpcClient(envd.port));
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

const python = (script: string) => ({ process: { cmd: 'python3', args: ['-c', script] } });

/** Sends a request as a program inside does; status and body. */
async function ask(
  method: string,
  path: string,
  more: { readonly host?: string; readonly token?: string; readonly by?: ProcessDriver } = {},
) {
  const { host = '127.0.0.1', token, by = driver } = more;
  const headers = token === undefined ? '{}' : `{'X-Access-Token': '${token}'}`;
  const { stdout, stderr } = await by.run(
    python(`import http.client
connection = http.client.HTTPConnection('${host}', 49983)
connection.request('${method}', '${path}', headers=${headers})
answer = connection.getresponse()
print(answer.status, answer.read().decode())`),
  );
  expect(stderr).toBe('');
  const [status = '', ...body] = stdout.trimEnd().split(' ');
  return { status: Number(status), body: body.join(' ') };
}

/** How many sockets of the sandbox listen on our port. */
async function listeners(agent: Agent): Promise<number> {
  let found = 0;
  for (const table of ['/proc/net/tcp', '/proc/net/tcp6']) {
    const { body } = await agent.readFile(table);
    const text = Buffer.concat(await Array.fromAsync(body)).toString();
    found += text.split('\n').filter((line) => /^ *\d+: [0-9A-F]+:C33F [0-9A-F]+:0000 0A /.test(line)).length;
  }
  return found;
}

describe('a program inside the sandbox', () => {
  test.each(['127.0.0.1', '::1', 'localhost'])('finds the guest API on %s:49983', async (host) => {
    expect(await ask('GET', '/health', { host })).toEqual({ status: 204, body: '' });
  });

  test('needs the access token for what clients outside need it for', async () => {
    for (const [method, path] of [
      ['GET', '/envs'],
      ['GET', '/metrics'],
      ['GET', '/files?path=/etc/hostname'],
      ['POST', '/process.Process/List'],
    ] as const) {
      expect((await ask(method, path)).status).toBe(401);
    }
    expect(JSON.parse((await ask('GET', '/envs', { token: TOKEN })).body)).toMatchObject({ A: 'b' });
    expect((await ask('GET', '/files?path=/proc/version', { token: TOKEN })).body).toMatch(/^Linux/);
  });

  test.each(['/init', '/freeze', '/unfreeze', '/collapse', '/fsfreeze', '/fsthaw', '/upgrade'])(
    'finds no %s, which the platform does by other means',
    async (path) => {
      expect((await ask('POST', path)).status).toBe(401);
      expect((await ask('POST', path, { token: TOKEN })).status).toBe(404);
    },
  );

  test('can send and fetch a file of 8 MiB, and start a process', async () => {
    const { stdout, stderr } = await driver.run(
      python(`import http.client, os, json
data = os.urandom(8 << 20)
connection = http.client.HTTPConnection('localhost', 49983)
token = {'X-Access-Token': '${TOKEN}'}
connection.request('POST', '/files?path=/tmp/inside', data, {**token, 'Content-Type': 'application/octet-stream'})
print(connection.getresponse().read().decode())
connection.request('GET', '/files?path=/tmp/inside', headers=token)
print(connection.getresponse().read() == data)
message = json.dumps({'process': {'cmd': 'echo', 'args': ['nested']}}).encode()
frame = bytes([0]) + len(message).to_bytes(4, 'big') + message
connection.request('POST', '/process.Process/Start', frame, {**token, 'Content-Type': 'application/connect+json'})
print(b'bmVzdGVkCg==' in connection.getresponse().read())`),
    );
    expect(stderr).toBe('');
    expect(stdout).toBe('[{"name":"inside","path":"/tmp/inside","type":"file"}]\nTrue\nTrue\n');
  });

  test('may open more connections than there are places for, and gets those that are free again', async () => {
    const { stream } = await driver.start(
      python(`import socket
sockets = []
while True:
    sockets.append(socket.create_connection(('127.0.0.1', 49983)))
    if len(sockets) == 400: break
print('open', flush=True)
refused = 0
for each in sockets:
    each.settimeout(20)
    try:
        each.sendall(b'GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
        if each.recv(1000) == b'': refused += 1
    except OSError: refused += 1
print('refused', refused, flush=True)`),
    );
    const { stdout } = await finish(stream);
    expect(stdout).toBe('open\nrefused 144\n');
    await expect.poll(async () => (await ask('GET', '/health').catch(() => undefined))?.status).toBe(204);
  });
});

describe('the listener', () => {
  const options = (more: Partial<Omit<EnvdOptions, 'agent'>>): Omit<EnvdOptions, 'agent'> => ({
    clock: testClock,
    log: SILENT_LOG,
    journal() {},
    sandboxId: 'itest',
    templateId: 'base',
    accessToken: TOKEN,
    defaultUser: 'user',
    defaultWorkdir: undefined,
    envVars: {},
    ...more,
  });

  test('is one per generation: made anew behind a resync and an activation', async () => {
    await using own = await startEnvd();
    const by = createProcessDriver(createRpcClient(own.port));
    expect(await listeners(own.guest.agent)).toBe(2);
    await own.service[Symbol.asyncDispose]();

    const agent = await own.guest.reconnect();
    await using second = createEnvd({ agent, ...options({ accessToken: undefined }) });
    own.serve(second);
    // The second service answers: it wants no token.
    expect((await ask('GET', '/envs', { by })).status).toBe(200);
    expect(await listeners(agent)).toBe(2);

    const key = randomBytes(16);
    await agent.activate({ key, generation: 'next', resetStreams: true, hostname: 'next', files: [] });
    own.guest.key = key;
    expect(await listeners(agent)).toBe(0);
    await using third = createEnvd({ agent: await own.guest.reconnect(), ...options({}) });
    own.serve(third);
    expect((await ask('GET', '/envs', { by })).status).toBe(401);
    expect(await listeners(own.guest.agent)).toBe(2);
  });

  test('makes way for a program that has the port already', async () => {
    await using own = await startEnvd();
    const rpc = createProcessDriver(createRpcClient(own.port));
    await own.service[Symbol.asyncDispose]();
    const agent = await own.guest.reconnect();
    const warnings: string[] = [];
    const log: Log = {
      ...SILENT_LOG,
      warn: (_fields, message) => warnings.push(message),
      child: () => log,
    };
    const taker = await agent.spawn(
      rootProcess([
        'python3',
        '-c',
        "import socket\ns = socket.create_server(('127.0.0.1', 49983))\nprint(1, flush=True)\ns.accept()",
      ]),
    );
    await new Promise<void>((resolve) => taker.onOutput(() => resolve()));
    await using second = createEnvd({ agent, ...options({ log }) });
    own.serve(second);
    await expect.poll(() => warnings).toEqual(['the guest API cannot be reached from inside']);
    expect((await rpc.run({ process: { cmd: 'echo', args: ['works'] } })).stdout).toBe('works\n');
  });
});
