import { readdir, readFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type FilesDriver, json, startFilesDriver } from '../testing/files-driver.ts';

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

describe('POST /files with a form', () => {
  test('several files by their names, directories kept, in the order of the parts', async () => {
    const form = new FormData();
    form.append('note', 'ignored');
    form.append('file', new Blob(['1']), files.path('x/one.txt'));
    form.append('file', new Blob(['2']), files.path('two "quoted".txt'));
    const answer = await files.postForm({}, form);
    expect(json(answer)).toEqual([
      { name: 'one.txt', path: files.path('x/one.txt'), type: 'file' },
      { name: 'two "quoted".txt', path: files.path('two "quoted".txt'), type: 'file' },
    ]);
    expect(await readFile(files.host('x/one.txt'), 'utf8')).toBe('1');
    expect(await readFile(files.host('two "quoted".txt'), 'utf8')).toBe('2');
  });

  test('a part without a filename is content, and the path query wins over a filename', async () => {
    const plain = new FormData();
    plain.append('file', 'plain string');
    expect(await files.postForm({ path: files.path('a') }, plain)).toMatchObject({ status: 200 });
    expect(await readFile(files.host('a'), 'utf8')).toBe('plain string');
    const named = new FormData();
    named.append('file', new Blob(['named']), 'elsewhere.txt');
    expect(json(await files.postForm({ path: files.path('b') }, named))).toMatchObject([{ path: files.path('b') }]);
  });

  test('the whole form may be compressed', async () => {
    const form = new FormData();
    form.append('file', new Blob(['zipped']), files.path('z'));
    const encoded = new Response(form);
    const answer = await files.envd.request('/files', {
      method: 'POST',
      headers: { 'content-type': encoded.headers.get('content-type') ?? '', 'content-encoding': 'gzip' },
      body: gzipSync(new Uint8Array(await encoded.arrayBuffer())),
    });
    expect(answer.status).toBe(200);
    expect(await readFile(files.host('z'), 'utf8')).toBe('zipped');
  });

  test('two parts for one path are refused, also when it is written differently', async () => {
    const form = new FormData();
    form.append('file', new Blob(['1']), files.path('same'));
    form.append('file', new Blob(['2']), files.path('./x/../same'));
    const answer = await files.postForm({}, form);
    expect(answer.status).toBe(400);
    expect(json(answer)).toMatchObject({ message: expect.stringMatching(/same path/) });
  });

  test('a part without any name to write to is refused', async () => {
    const form = new FormData();
    form.append('file', 'x');
    expect(await files.postForm({}, form)).toMatchObject({ status: 400 });
  });

  test('a form without files writes nothing', async () => {
    const form = new FormData();
    form.append('other', 'x');
    expect(json(await files.postForm({}, form))).toEqual([]);
  });

  test('metadata are those of every file of the request', async () => {
    const form = new FormData();
    for (const name of ['a', 'b']) form.append('file', new Blob([name]), files.path(name));
    await files.postForm({}, form, { 'x-metadata-k': 'v' });
    for (const name of ['a', 'b']) expect((await files.envd.guest.agent.stat(files.path(name))).xattrs.size).toBe(1);
  });

  test('a body that is cut off is refused and leaves the file of the cut part unwritten', async () => {
    const body =
      `--B\r\nContent-Disposition: form-data; name="file"; filename="${files.path('whole')}"\r\n\r\nok\r\n` +
      `--B\r\nContent-Disposition: form-data; name="file"; filename="${files.path('cut')}"\r\n\r\npart`;
    const headers = { 'content-type': 'multipart/form-data; boundary=B' };
    const answer = await files.envd.request('/files', { method: 'POST', headers, body });
    expect(json(answer)).toMatchObject({ code: 400, message: expect.stringMatching(/multipart body/) });
    expect(await readdir(files.outside)).toEqual(['whole']);
  });

  test('500 files in one request', async () => {
    const form = new FormData();
    for (let index = 0; index < 500; index++) form.append('file', new Blob([String(index)]), files.path(`d/${index}`));
    expect(json(await files.postForm({}, form))).toHaveLength(500);
    expect(await readdir(files.host('d'))).toHaveLength(500);
    expect(await readFile(files.host('d/499'), 'utf8')).toBe('499');
  });
});
