import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError, type Rng } from '@agentenv/core';
import { readManagedFile } from './managed-file.ts';

const VALID_KEY = /^[A-Za-z0-9._~-]{32,256}$/;
/** Random bytes of a key this server makes; 40 hex characters. */
const KEY_BYTES = 20;

export interface ApiKey {
  readonly value: string;
  /** Where it came from, for people: an environment variable or a file. */
  readonly source: string;
}

export interface ApiKeyOptions {
  /** Value of `AENV_API_KEY`; empty is an error, undefined looks further. */
  readonly environment: string | undefined;
  /** A file an orchestrator of containers may mount; `/run/secrets/api-key`. */
  readonly mountedFile: string;
  readonly homePath: string;
  readonly uid: number;
  readonly rng: Rng;
}

/** The API key by the order of agentenv.md section 2.1; made and kept when there is none. Unusable: `invalid_argument`. */
export async function loadApiKey(options: ApiKeyOptions): Promise<ApiKey> {
  if (options.environment !== undefined) return check(options.environment, 'AENV_API_KEY');
  const mounted = await readMounted(options.mountedFile);
  if (mounted !== undefined) return check(mounted, options.mountedFile);
  const path = join(options.homePath, 'secrets/api-key');
  const hex = (bytes: number) => Buffer.from(options.rng.bytes(bytes)).toString('hex');
  const value = await readManagedFile({
    path,
    uid: options.uid,
    create: () => `e2b_${hex(KEY_BYTES)}`,
    unique: hex(8),
  });
  return check(value, path);
}

async function readMounted(path: string): Promise<string | undefined> {
  try {
    return (await readFile(path, 'utf8')).replace(/\r?\n$/, '');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new PlatformError('invalid_argument', `the API key cannot be read from ${path}`, { cause: error });
  }
}

/** The message never holds the value: it may be a good key with a bad character in it. */
function check(value: string, source: string): ApiKey {
  if (!VALID_KEY.test(value)) {
    throw new PlatformError(
      'invalid_argument',
      `${source} does not hold an API key: 32 to 256 characters of A-Z a-z 0-9 . _ ~ - are needed`,
    );
  }
  return { value, source };
}
