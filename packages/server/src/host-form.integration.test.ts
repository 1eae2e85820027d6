import { request } from 'node:http';
import { text } from 'node:stream/consumers';
import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ServerProcess, startServerProcess } from './testing/server-process.ts';

const KEY = `e2b_${'c0ffee'.repeat(8)}`;
const DOMAIN = 'sandboxes.test';

/** URLs that clients give to others name the sandbox in their host and nowhere else (contract e2b.md T24). */
describe('a signed URL of a file', () => {
  let server: ServerProcess;
  let url: string;
  let sandbox: Sandbox;
  beforeAll(async () => {
    server = await startServerProcess({
      config: `backend = "fake"\nsandbox_proxy.domains = ["${DOMAIN}"]`,
      environment: { AENV_API_KEY: KEY },
    });
    url = await server.ready();
    sandbox = await Sandbox.create('base', { apiKey: KEY, apiUrl: url });
  }, 90_000);
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
  });

  /** What somebody gets who has the URL and nothing else; the name leads to the server. */
  async function fetchSigned(signed: string, form?: FormData): Promise<{ status: number; body: string }> {
    const { host, pathname, search, protocol } = new URL(signed);
    expect(protocol).toBe('https:');
    const encoded = form === undefined ? undefined : new Response(form);
    const body = encoded === undefined ? undefined : Buffer.from(await encoded.arrayBuffer());
    const type = encoded?.headers.get('content-type');
    return await new Promise((resolve, reject) => {
      const outgoing = request(
        new URL(pathname + search, url),
        {
          method: body === undefined ? 'GET' : 'POST',
          headers: { host, ...(type === null || type === undefined ? {} : { 'content-type': type }) },
        },
        (answer) => {
          text(answer).then((received) => resolve({ status: answer.statusCode ?? 0, body: received }), reject);
        },
      );
      outgoing.on('error', reject);
      outgoing.end(body);
    });
  }

  it('names the sandbox by its host', async () => {
    const signed = await sandbox.downloadUrl('note.txt', { useSignatureExpiration: 60 });
    expect(new URL(signed).host).toBe(`49983-${sandbox.sandboxId}.${DOMAIN}`);
    expect(sandbox.getHost(3000)).toBe(`3000-${sandbox.sandboxId}.${DOMAIN}`);
  });

  it('uploads and downloads for whoever has it, and for nobody who changed it', async () => {
    const form = new FormData();
    form.append('file', new Blob(['content']), 'note.txt');
    const upload = await sandbox.uploadUrl('note.txt', { useSignatureExpiration: 60 });
    expect(await fetchSigned(upload, form)).toMatchObject({ status: 200 });
    const download = await sandbox.downloadUrl('note.txt', { useSignatureExpiration: 60 });
    expect(await fetchSigned(download)).toEqual({ status: 200, body: 'content' });
    expect((await fetchSigned(download.replace('note.txt', 'other.txt'))).status).toBe(401);
    expect((await fetchSigned(download.replace(/signature=[^&]*/, 'signature=v1_x'))).status).toBe(401);
    const stranger = download.replace(sandbox.sandboxId, 'iaaaaaaaaaaaaaaaaaaaa');
    expect((await fetchSigned(stranger)).status).toBe(502);
  });
});
