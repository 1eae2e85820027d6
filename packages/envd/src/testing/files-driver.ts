import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type EnvdFixture, startEnvd } from './envd-fixture.ts';
import type { Answer, RequestOptions } from './http-client.ts';

/** The headers of an upload of plain bytes. */
export const OCTETS = { 'content-type': 'application/octet-stream' };
const DIRECTORY = '/mnt/work';

/** Drives `/files` of a service, with a directory that both the guest and the test see. */
export interface FilesDriver extends AsyncDisposable {
  readonly envd: EnvdFixture;
  /** The directory in the guest. */
  readonly directory: string;
  /** The same directory on this machine. */
  readonly outside: string;
  /** A file of the directory in the guest. */
  path(name: string): string;
  /** The same file on this machine. */
  host(name: string): string;
  get(query: Record<string, string>, headers?: RequestOptions['headers']): Promise<Answer>;
  put(path: string, body: NonNullable<RequestOptions['body']>, headers?: RequestOptions['headers']): Promise<Answer>;
  postForm(query: Record<string, string>, form: FormData, headers?: RequestOptions['headers']): Promise<Answer>;
  /** Empties the directory. */
  reset(): Promise<void>;
}

export function filesUrl(query: Record<string, string>): string {
  return `/files?${new URLSearchParams(query)}`;
}

export function json({ body }: Answer): unknown {
  return JSON.parse(body.toString('utf8'));
}

export async function startFilesDriver(): Promise<FilesDriver> {
  const envd = await startEnvd();
  const outside = join(envd.shared, 'work');
  await mkdir(outside);
  return {
    envd,
    directory: DIRECTORY,
    outside,
    path: (name) => `${DIRECTORY}/${name}`,
    host: (name) => join(outside, name),
    get: (query, headers = {}) => envd.request(filesUrl(query), { headers }),
    put: (path, body, headers = {}) =>
      envd.request(filesUrl({ path }), { method: 'POST', headers: { ...OCTETS, ...headers }, body }),
    async postForm(query, form, headers = {}) {
      const encoded = new Response(form);
      return await envd.request(filesUrl(query), {
        method: 'POST',
        headers: { 'content-type': encoded.headers.get('content-type') ?? '', ...headers },
        body: new Uint8Array(await encoded.arrayBuffer()),
      });
    },
    async reset() {
      await rm(outside, { recursive: true, force: true });
      await mkdir(outside);
    },
    [Symbol.asyncDispose]: () => envd[Symbol.asyncDispose](),
  };
}
