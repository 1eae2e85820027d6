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

  test('a signed query of which anything is changed, taken away or added opens nothing', async () => {
    const name = 'a b+c%20é&=;:ü.txt';
    await writeFile(files.host(name), 'secret');
    const expiration = String(Math.floor(Date.now() / 1000) + 60);
    const signed = { path: files.path(name), username: 'user', signature_expiration: expiration };
    const signature = signFileRequest(
      { path: signed.path, operation: 'read', username: signed.username, expiration },
      TOKEN,
    );
    const query: Record<string, string> = { ...signed, signature };
    expect((await files.get(query, none)).body.toString()).toBe('secret');
    const tampered: Record<string, string>[] = [
      { ...query, path: `${query.path}x` },
      { ...query, path: `/mnt/work/./${name}` },
      { ...query, username: 'root' },
      { ...query, signature_expiration: String(Number(expiration) + 1) },
      { ...query, signature_expiration: '' },
      { ...query, signature: `${signature}=` },
      { ...query, signature: signature.slice(0, -1) },
      { ...query, signature: signature.replace('v1_', 'v2_') },
      { ...query, signature: '' },
      ...['path', 'username', 'signature_expiration', 'signature'].map((missing) =>
        Object.fromEntries(Object.entries(query).filter(([key]) => key !== missing)),
      ),
      ...Array.from({ length: signature.length }, (_, index) => ({
        ...query,
        signature: signature.slice(0, index) + (signature[index] === 'A' ? 'B' : 'A') + signature.slice(index + 1),
      })),
    ];
    for (const attempt of tampered) {
      const answer = await files.get(attempt, none);
      expect({ ...attempt, status: answer.status }).toEqual({ ...attempt, status: 401 });
    }
    // The same signature does not write, and a value that is repeated counts as it stands first, here and for the file.
    const post = { method: 'POST', headers: { ...OCTETS, ...none }, body: 'x' };
    expect((await files.envd.request(filesUrl(query), post)).status).toBe(401);
    const twice = await files.envd.request(`${filesUrl(query)}&path=/etc/passwd`, { headers: none });
    expect(twice.body.toString()).toBe('secret');
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
