import { execFile } from 'node:child_process';
import { chmod, chown, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { createSeededRandom } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadApiKey } from './api-key.ts';
import { loadTokenSeed } from './seed.ts';

const uid = process.getuid?.() ?? 0;
let home: string;
beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), 'aenv-secrets-'));
});
afterEach(() => rm(home, { recursive: true, force: true }));

const key = (changes: Partial<Parameters<typeof loadApiKey>[0]> = {}) =>
  loadApiKey({
    environment: undefined,
    mountedFile: join(home, 'mounted-key'),
    homePath: home,
    uid,
    rng: createSeededRandom(1),
    ...changes,
  });
const seed = (changes: Partial<Parameters<typeof loadTokenSeed>[0]> = {}) =>
  loadTokenSeed({
    configured: undefined,
    homePath: home,
    uid,
    rng: createSeededRandom(2),
    existingTokens: false,
    ...changes,
  });
const mode = async (path: string) => ((await stat(path)).mode & 0o777).toString(8);
const GOOD_KEY = 'abcdefghijklmnopqrstuvwxyz.~_-0123456789';

describe('the API key', () => {
  it('comes from the environment, then from a mounted file, then from the home directory', async () => {
    await writeFile(join(home, 'mounted-key'), `${GOOD_KEY}\n`);
    expect(await key({ environment: `${GOOD_KEY}E` })).toEqual({ value: `${GOOD_KEY}E`, source: 'AENV_API_KEY' });
    expect(await key()).toEqual({ value: GOOD_KEY, source: join(home, 'mounted-key') });
    await rm(join(home, 'mounted-key'));
    expect((await key()).source).toBe(join(home, 'secrets/api-key'));
  });

  it('is made in the form every client takes, kept, and kept private', async () => {
    const made = await key();
    expect(made.value).toMatch(/^e2b_[0-9a-f]{40}$/);
    expect(await key({ rng: createSeededRandom(9) })).toEqual(made);
    expect(await mode(join(home, 'secrets'))).toBe('700');
    expect(await mode(join(home, 'secrets/api-key'))).toBe('600');
    expect(await readdir(join(home, 'secrets'))).toEqual(['api-key']);
  });

  it.each([
    ['empty', ''],
    ['too short', 'a'.repeat(31)],
    ['too long', 'a'.repeat(257)],
    ['with a space', `${'a'.repeat(32)} `],
    ['with a comma', `${'a'.repeat(32)},`],
    ['with a newline inside', `${'a'.repeat(32)}\n\n`],
  ])('is refused when it is %s, without being shown', async (_what, value) => {
    for (const load of [
      () => key({ environment: value }),
      async () => {
        await writeFile(join(home, 'mounted-key'), value);
        return key();
      },
    ]) {
      const error = await load().then(
        () => undefined,
        (caught: Error) => caught,
      );
      expect(error).toMatchObject({ code: 'invalid_argument' });
      if (value !== '') expect(error?.message).not.toContain(value.trim());
    }
  });
});

describe('the token seed', () => {
  it('is configured and trimmed, or 64 hex characters that stay', async () => {
    expect(await seed({ configured: ' my seed ' })).toBe('my seed');
    const made = await seed();
    expect(made).toMatch(/^[0-9a-f]{64}$/);
    expect(await seed({ rng: createSeededRandom(5), existingTokens: true })).toBe(made);
    expect(await readFile(join(home, 'secrets/sandbox-access-token-hash-seed'), 'utf8')).toBe(`${made}\n`);
    await expect(seed({ configured: '  ' })).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  it('is the same for servers that start at once', async () => {
    const seeds = await Promise.all(Array.from({ length: 16 }, (_, index) => seed({ rng: createSeededRandom(index) })));
    expect(new Set(seeds).size).toBe(1);
    expect(await readdir(join(home, 'secrets'))).toEqual(['sandbox-access-token-hash-seed']);
  });

  it('is never made anew while sandboxes depend on the old one', async () => {
    await expect(seed({ existingTokens: true })).rejects.toThrow(/is missing.*restore it/);
    expect(await readdir(home)).toEqual([]);
  });

  const path = () => join(home, 'secrets/sandbox-access-token-hash-seed');
  const put = async (content: string) => {
    await mkdir(join(home, 'secrets'), { mode: 0o700 });
    await writeFile(path(), content, { mode: 0o600 });
  };
  const good = 'ab'.repeat(32);

  it.each<[string, () => Promise<unknown>, RegExp]>([
    ['of other characters', () => put('xy'.repeat(32)), /64 lower-case hex/],
    ['of upper-case characters', () => put('AB'.repeat(32)), /64 lower-case hex/],
    ['empty', () => put(''), /64 lower-case hex/],
    ['with two newlines', () => put(`${good.slice(1)}\n\n`), /64 lower-case hex/],
    ['too long', () => put(`${good}\n\n`), /longer than 65 bytes/],
    ['readable by others', () => put(good).then(() => chmod(path(), 0o644)), /mode is 0644/],
    [
      'in a directory others can enter',
      () => put(good).then(() => chmod(join(home, 'secrets'), 0o755)),
      /mode is 0755/,
    ],
    [
      'a symbolic link',
      async () => {
        await mkdir(join(home, 'secrets'), { mode: 0o700 });
        await writeFile(join(home, 'elsewhere'), good, { mode: 0o600 });
        await symlink(join(home, 'elsewhere'), path());
      },
      /symbolic link/,
    ],
    ['a directory', () => mkdir(path(), { recursive: true, mode: 0o700 }), /not a regular file/],
    [
      'a FIFO',
      async () => {
        await mkdir(join(home, 'secrets'), { mode: 0o700 });
        await promisify(execFile)('mkfifo', ['-m', '600', path()]);
      },
      /not a regular file/,
    ],
  ])('is refused and left alone when its file is %s', async (_what, prepare, message) => {
    await prepare();
    const before = await stat(path());
    await expect(seed()).rejects.toThrow(message);
    expect((await stat(path())).ino).toBe(before.ino);
  });

  it.skipIf(uid !== 0)('is refused when its file belongs to somebody else', async () => {
    await put(good);
    await chown(path(), 12_345, 12_345);
    await expect(seed()).rejects.toThrow(/belongs to user 12345/);
  });
});
