import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { Sandbox } from 'e2b';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { residentBytes } from './lib/host.ts';
import { NO_POOL, startServer, type TestServer } from './lib/server.ts';

const MEBIBYTE = 1024 * 1024;

let server: TestServer;
let sandbox: Sandbox;
let routing: Record<string, string>;
beforeAll(async () => {
  server = await startServer({ config: NO_POOL });
  sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 900_000 });
  const detail = (await (await server.api(`/sandboxes/${sandbox.sandboxId}`)).json()) as { envdAccessToken: string };
  routing = {
    'e2b-sandbox-id': sandbox.sandboxId,
    'e2b-sandbox-port': '49983',
    'x-access-token': detail.envdAccessToken,
  };
});
afterAll(async () => {
  await sandbox.kill();
  await server.stop();
  await server[Symbol.asyncDispose]();
});

/** Sends raw bytes, returns what came back until the server closed or 2 s of silence. */
async function raw(bytes: Buffer | string): Promise<string> {
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  let answer = '';
  socket.setEncoding('latin1').on('data', (text: string) => {
    answer += text;
  });
  socket.setTimeout(2_000, () => socket.destroy());
  // A reset is one of the allowed answers.
  socket.on('error', () => undefined);
  socket.end(bytes);
  await new Promise((resolve) => socket.once('close', resolve));
  return answer;
}

/** Runs `attack`, then asserts that the server still works and grew by at most 64 MiB. */
async function survives(attack: () => Promise<void>): Promise<void> {
  const before = residentBytes(server.pid);
  await attack();
  expect((await fetch(`${server.url}/health`)).status).toBe(204);
  expect((await sandbox.commands.run('echo fine')).stdout).toBe('fine\n');
  expect(residentBytes(server.pid) - before).toBeLessThanOrEqual(64 * MEBIBYTE);
}

const badName = fc.string({ unit: fc.constantFrom('a', '/', '.', '%', '\u0000', '💥', ' ', ';', '"'), maxLength: 300 });

describe('hostile input gets a clear 4xx and costs nothing', () => {
  it('control-plane bodies', async () => {
    await survives(async () => {
      await fc.assert(
        fc.asyncProperty(fc.oneof(fc.json(), fc.string(), fc.base64String({ maxLength: 5000 })), async (body) => {
          const response = await server.api('/v2/sandboxes', {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body,
          });
          expect(response.status).toBeGreaterThanOrEqual(400);
          expect(response.status).toBeLessThan(500);
          expect(((await response.json()) as { code: number }).code).toBe(response.status);
        }),
        { numRuns: 300, seed: 20261 },
      );
    });
  });

  it('paths, ids and queries', async () => {
    await survives(async () => {
      await fc.assert(
        fc.asyncProperty(badName, badName, async (id, query) => {
          const path = `/sandboxes/${encodeURIComponent(id)}?state=${encodeURIComponent(query)}`;
          const response = await server.api(path === '/sandboxes/?' ? '/sandboxes/x' : path);
          if (id === '' || /^\.{1,2}$/.test(id)) return;
          expect(response.status).toBeGreaterThanOrEqual(400);
          expect(response.status).toBeLessThan(500);
        }),
        { numRuns: 300, seed: 20262 },
      );
    });
  });

  it('file paths that are absurd are refused or written, never a server error', async () => {
    await survives(async () => {
      await fc.assert(
        fc.asyncProperty(badName, async (name) => {
          const response = await fetch(`${server.url}/files?path=${encodeURIComponent(`/tmp/fuzz/${name}`)}`, {
            method: 'POST',
            headers: { ...routing, 'content-type': 'application/octet-stream' },
            body: 'x',
          });
          expect(response.status, await response.text()).toBeLessThan(500);
        }),
        { numRuns: 60, seed: 20263 },
      );
    });
  });

  it('Connect envelopes: lengths that lie, flags, garbage, and JSON that is not', async () => {
    await survives(async () => {
      const envelope = (flags: number, length: number, body: Buffer) => {
        const head = Buffer.alloc(5);
        head.writeUInt8(flags, 0);
        head.writeUInt32BE(length, 1);
        return Buffer.concat([head, body]);
      };
      const json = Buffer.from('{"process":{"cmd":"/bin/true"}}');
      const bodies = [
        envelope(0, 0xffffffff, json),
        envelope(0, json.length + 100, json),
        envelope(1, json.length, json),
        envelope(0xff, json.length, json),
        envelope(0, 4, Buffer.from('nope')),
        Buffer.alloc(0),
        randomBytes(10_000),
        envelope(0, 2, Buffer.from('{}')),
        envelope(0, 37, Buffer.from('{"process":{"cmd":123,"args":"no way"}')),
      ];
      for (const body of bodies) {
        const response = await fetch(`${server.url}/process.Process/Start`, {
          method: 'POST',
          headers: { ...routing, 'content-type': 'application/connect+json', 'connect-protocol-version': '1' },
          body: new Uint8Array(body),
        });
        const text = await response.text();
        if (response.status === 200) expect(text, text).toMatch(/"error"/);
        else expect(response.status, text).toBeLessThan(500);
      }
    });
  });

  it('multipart and gzip bodies that break off or expand without end', async () => {
    await survives(async () => {
      const post = (type: string, body: Uint8Array<ArrayBuffer> | string, extra: Record<string, string> = {}) =>
        fetch(`${server.url}/files?path=/tmp/never`, {
          method: 'POST',
          headers: { ...routing, 'content-type': type, ...extra },
          body,
        });
      const multipart = 'multipart/form-data; boundary=b';
      const head = '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n';
      expect((await post(multipart, `${head}never closed`)).status).toBe(400);
      expect((await post(multipart, 'no parts at all')).status).toBe(400);
      expect((await post('multipart/form-data', head)).status).toBe(400);
      expect((await post(multipart, `--b\r\n${'X: y\r\n'.repeat(50_000)}`)).status).toBe(400);
      const broken = await post('application/octet-stream', new Uint8Array([0x1f, 0x8b, 8, 0, 1, 2, 3]), {
        'content-encoding': 'gzip',
      });
      expect(broken.status).toBe(400);
      expect(await sandbox.commands.run('ls /tmp/never || echo nothing there').then(({ stdout }) => stdout)).toContain(
        'nothing there',
      );
    });
  });

  it('headers and request lines that are too large, doubled or malformed', async () => {
    await survives(async () => {
      const host = 'Host: x\r\n';
      for (const bytes of [
        `GET / HTTP/1.1\r\n${host}${'a: b\r\n'.repeat(20_000)}\r\n`,
        `GET /${'x'.repeat(100_000)} HTTP/1.1\r\n${host}\r\n`,
        'GET / HTTP/9.9\r\n\r\n',
        `POST /v2/sandboxes HTTP/1.1\r\n${host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
        `POST /v2/sandboxes HTTP/1.1\r\n${host}Content-Length: -1\r\n\r\n`,
        randomBytes(5_000),
      ]) {
        expect((await raw(bytes as string)).startsWith('HTTP/1.1 5')).toBe(false);
      }
      const doubled = await raw(
        `GET /v2/sandboxes HTTP/1.1\r\n${host}X-API-Key: ${server.apiKey}\r\nX-API-Key: ${server.apiKey}\r\nConnection: close\r\n\r\n`,
      );
      expect(doubled).toMatch(/^HTTP\/1\.1 401/);
      for (const port of ['abc', '-1', '70000', '']) {
        const response = await fetch(`${server.url}/health`, { headers: { ...routing, 'e2b-sandbox-port': port } });
        expect(response.status).toBe(400);
      }
    });
  });

  it('a hostile guest cannot do more than lose its own sandbox', { timeout: 200_000 }, async () => {
    // Root in the guest may write to the port device itself: the most direct way to break the frame format.
    const victim = await Sandbox.create('base', { ...server.sdk, timeoutMs: 300_000 });
    const before = residentBytes(server.pid);
    await victim.commands
      .run('for port in /dev/vport*; do head -c 50000000 /dev/urandom > $port; done', {
        user: 'root',
        timeoutMs: 20_000,
      })
      .catch(() => undefined);
    expect((await fetch(`${server.url}/health`)).status).toBe(204);
    expect((await sandbox.commands.run('echo fine')).stdout).toBe('fine\n');
    expect(residentBytes(server.pid) - before).toBeLessThanOrEqual(64 * MEBIBYTE);
    await victim.kill();
  });
});
