import { randomBytes } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type FilesDriver, filesUrl, json, OCTETS, startFilesDriver } from '../testing/files-driver.ts';
import { TOKEN } from '../testing/http-client.ts';
import { signFileRequest } from './signature.ts';
import { randomChunks } from './testing/random-chunks.ts';

let files: FilesDriver;

beforeAll(async () => {
  files = await startFilesDriver();
});
afterAll(async () => {
  await files[Symbol.asyncDispose]();
});
afterEach(async () => {
  await files.reset();
});

describe('authorisation', () => {
  const none = { 'x-access-token': [] };

  test('a signature opens one operation on one path, and nothing else does', async () => {
    await writeFile(files.host('a'), 'secret');
    const signature = (operation: 'read' | 'write', expiration?: number) =>
      signFileRequest({ path: files.path('a'), operation, username: '', expiration: expiration?.toString() }, TOKEN);
    const signedRead = { path: files.path('a'), signature: signature('read') };
    expect((await files.get(signedRead, none)).body.toString()).toBe('secret');
    const now = Math.floor(Date.now() / 1000);
    const fresh = { ...signedRead, signature: signature('read', now + 60), signature_expiration: String(now + 60) };
    expect(await files.get(fresh, none)).toMatchObject({ status: 200 });
    const stale = { ...signedRead, signature: signature('read', now - 60), signature_expiration: String(now - 60) };
    expect(json(await files.get(stale, none))).toEqual({ code: 401, message: 'signature is already expired' });
    expect(json(await files.get({ ...fresh, signature_expiration: String(now + 61) }, none))).toEqual({
      code: 401,
      message: 'invalid signature',
    });
    expect(json(await files.get({ path: files.path('a') }, none))).toEqual({
      code: 401,
      message: 'missing signature query parameter',
    });
    expect(json(await files.get({ path: files.path('a') }, { 'x-access-token': 'wrong' }))).toEqual({
      code: 401,
      message: 'access token present in header but does not match',
    });
    const write = (query: Record<string, string>) =>
      files.envd.request(filesUrl(query), { method: 'POST', headers: { ...OCTETS, ...none }, body: 'written' });
    expect(await write(signedRead)).toMatchObject({ status: 401 });
    expect(await write({ path: files.path('a'), signature: signature('write') })).toMatchObject({ status: 200 });
    expect(await readFile(files.host('a'), 'utf8')).toBe('written');
  });

  test('an upload that is refused is answered although its body is still coming', async () => {
    const answer = await files.envd.request(filesUrl({ path: files.path('a') }), {
      method: 'POST',
      headers: { ...OCTETS, 'x-access-token': 'wrong' },
      body: randomChunks(randomBytes(4 * 1024 * 1024), [65_536]),
    });
    expect(answer.status).toBe(401);
    expect(await readdir(files.outside)).toEqual([]);
  });
});
