import { once } from 'node:events';
import { connect } from 'node:net';
import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ServerProcess, startServerProcess } from './testing/server-process.ts';

const KEY = `e2b_${'5ec4e7'.repeat(8)}`;
const SEED = 'planted-token-seed-of-this-server';
/** What clients send that nobody else may ever get to read, by where it stands. */
const PLANTED = {
  wrongKey: `e2b_${'bad5ec'.repeat(8)}`,
  bearer: 'planted-bearer-token',
  basicPassword: 'planted-basic-password',
  cookie: 'planted-cookie',
  wrongAccessToken: 'planted-wrong-access-token',
  wrongTrafficToken: 'planted-wrong-traffic-token',
  signature: 'v1_planted-signature',
  sandboxEnv: 'planted-value-of-the-sandbox-environment',
  commandEnv: 'planted-value-of-a-command-environment',
  argument: 'planted-argument-of-a-command',
  input: 'planted-input-of-a-command',
  fileContent: 'planted-content-of-a-file',
  metadata: 'planted-metadata',
  mcpKey: 'planted-key-of-an-mcp-server',
  proxyPassword: 'planted-password-of-an-egress-proxy',
  brokenBody: 'planted-in-a-body-that-is-not-json',
  query: 'planted-in-a-query-nobody-knows',
  malformed: 'planted-in-bytes-that-are-no-request',
} as const;

let server: ServerProcess;
let url: string;
beforeAll(async () => {
  server = await startServerProcess({
    environment: { AENV_API_KEY: KEY, AENV_SANDBOX_ACCESS_TOKEN_HASH_SEED: SEED },
    config: 'backend = "fake"\nlog.level = "debug"\nlog.format = "json"',
  });
  url = await server.ready();
}, 90_000);
afterAll(() => server[Symbol.asyncDispose]());

/** Bodies of answers that are not meant for the holder of the key alone: errors, and what everybody can read. */
const bodies: string[] = [];

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(`${url}${path}`, init);
  const copy = response.clone();
  if (response.status >= 400) bodies.push(`${path.split('?')[0]} ${response.status} ${await copy.text()}`);
  return response;
}

const withKey = (headers: Record<string, string> = {}) => ({ 'x-api-key': KEY, ...headers });
const post = (path: string, body: unknown, headers: Record<string, string> = withKey()) =>
  ask(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });

/** Everything a secret may look like in a text. */
function forms(secret: string): readonly string[] {
  const base64 = Buffer.from(secret).toString('base64').replace(/=+$/, '').slice(0, -1);
  return [secret, encodeURIComponent(secret), base64, JSON.stringify(secret).slice(1, -1)];
}

describe('secrets', () => {
  const tokens: string[] = [];
  let sandbox: Sandbox;

  it('are used in every way there is', { timeout: 60_000 }, async () => {
    const connection = { apiKey: KEY, apiUrl: url, sandboxUrl: url };
    sandbox = await Sandbox.create('base', {
      ...connection,
      envs: { SECRET: PLANTED.sandboxEnv },
      metadata: { secret: PLANTED.metadata },
      network: { allowPublicTraffic: false },
    });
    const { sandboxId } = sandbox;
    const detail = (await (await ask(`/sandboxes/${sandboxId}`, { headers: withKey() })).json()) as Record<
      string,
      string
    >;
    const connected = (await (await post(`/v2/sandboxes/${sandboxId}/connect`, {})).json()) as Record<string, string>;
    tokens.push(detail.envdAccessToken ?? '', connected.trafficAccessToken ?? '');
    expect(tokens.every((token) => token.length >= 32)).toBe(true);

    // Commands and files, through the client.
    await sandbox.commands.run('printenv SECRET', { envs: { OWN: PLANTED.commandEnv } });
    await sandbox.commands.run(`echo ${PLANTED.argument}`);
    await sandbox.commands.run(`cat /${PLANTED.argument}`).catch(() => undefined);
    const cat = await sandbox.commands.run('cat', { background: true, stdin: true });
    await sandbox.commands.sendStdin(cat.pid, `${PLANTED.input}\n`);
    await cat.kill();
    await sandbox.files.write('secret.txt', PLANTED.fileContent);
    await sandbox.files.read('secret.txt');
    await sandbox.files.read('absent.txt').catch(() => undefined);

    // Keys and tokens that are wrong, or in the wrong place.
    const routed = { 'e2b-sandbox-id': sandboxId, 'e2b-sandbox-port': '49983' };
    const other = { 'e2b-sandbox-id': sandboxId, 'e2b-sandbox-port': '8080' };
    for (const headers of [
      { 'x-api-key': PLANTED.wrongKey },
      { authorization: `Bearer ${PLANTED.bearer}`, cookie: `session=${PLANTED.cookie}` },
      { authorization: `Basic ${Buffer.from(`user:${PLANTED.basicPassword}`).toString('base64')}` },
    ] as Record<string, string>[]) {
      for (const path of ['/teams', '/v2/sandboxes', `/sandboxes/${sandboxId}`]) await ask(path, { headers });
    }
    await ask('/files?path=secret.txt', { headers: { ...routed, 'x-access-token': PLANTED.wrongAccessToken } });
    await ask('/files?path=secret.txt', { headers: { 'x-access-token': PLANTED.wrongAccessToken } });
    await ask(`/files?path=secret.txt&signature=${PLANTED.signature}`, { headers: routed });
    await ask('/', { headers: { ...other, 'e2b-traffic-access-token': PLANTED.wrongTrafficToken } });
    await ask('/', { headers: { ...other, 'e2b-traffic-access-token': tokens[1] ?? '' } });
    await ask('/envs', { headers: { ...routed, 'x-access-token': tokens[0] ?? '' } });
    await ask('/process.Process/Start', {
      method: 'POST',
      headers: { ...routed, 'content-type': 'application/json', 'x-access-token': PLANTED.wrongAccessToken },
      body: '{}',
    });

    // Requests that are refused, with secrets in them.
    await post('/v2/sandboxes', { templateID: 'base', mcp: { exa: { apiKey: PLANTED.mcpKey } } });
    await post('/v2/sandboxes', {
      templateID: 'base',
      network: { egressProxy: { address: 'a:1', username: 'u', password: PLANTED.proxyPassword } },
    });
    await post('/v2/sandboxes', `{"templateID":"base","envVars":{"A":"${PLANTED.brokenBody}"`);
    await post('/v2/sandboxes', { templateID: 'base', envVars: { A: 1, B: PLANTED.sandboxEnv } });
    await post('/v2/sandboxes', { templateID: 'unknown', envVars: { A: PLANTED.sandboxEnv } });
    await post('/v2/sandboxes', { templateID: 'base', metadata: [PLANTED.metadata] });
    await post('/volumes', { name: PLANTED.metadata });
    await ask(`/v2/sandboxes?token=${PLANTED.query}&limit=0`, { headers: withKey() });
    await ask(`/nowhere?token=${PLANTED.query}`, { headers: withKey() });
    const socket = connect(Number(new URL(url).port), '127.0.0.1');
    await once(socket, 'connect');
    socket.on('error', () => {}).on('data', (bytes) => bodies.push(String(bytes)));
    socket.end(`BREW /${PLANTED.malformed} HTTP/9.9\r\n${PLANTED.malformed}\r\n\r\n`);
    if (!socket.closed) await once(socket, 'close');
  });

  it('are not in metrics, logs of sandboxes, nodes and what errors say', async () => {
    const { sandboxId } = sandbox;
    const everything = [...bodies, await (await ask('/metrics')).text()];
    for (const path of [`/sandboxes/${sandboxId}/logs`, `/v2/sandboxes/${sandboxId}/logs`, '/nodes']) {
      const response = await ask(path, { headers: withKey() });
      expect(response.status).toBe(200);
      everything.push(await response.text());
    }
    // What is looked through holds what it has to: the processes that were started, and an error of every kind.
    expect(everything.join('\n')).toContain('process started');
    for (const status of [400, 401, 403, 404, 501])
      expect(everything.join('\n')).toMatch(new RegExp(`^\\S+ ${status} `, 'm'));
    expectNoSecretIn(everything.join('\n'));
  });

  it('are not in anything the server writes, from its start to its end', { timeout: 60_000 }, async () => {
    await sandbox.kill();
    await Sandbox.create('base', {
      ...{ apiKey: KEY, apiUrl: url, sandboxUrl: url },
      envs: { SECRET: PLANTED.sandboxEnv },
    });
    expect(await server.end('SIGTERM')).toBe(0);
    const output = server.output();
    expect(output).toContain('"level":"debug"');
    expect(output).toContain('the server has ended');
    expect(output.split('\n').length).toBeGreaterThan(30);
    expectNoSecretIn(output);
  });

  function expectNoSecretIn(text: string): void {
    const secrets = { key: KEY, seed: SEED, accessToken: tokens[0] ?? '', trafficToken: tokens[1] ?? '', ...PLANTED };
    const found = Object.entries(secrets).filter(([, secret]) => forms(secret).some((form) => text.includes(form)));
    expect(found.map(([name]) => name)).toEqual([]);
  }
});
