import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { claimHome, claimRuntime } from './directory-lock.ts';

let scratch: string;
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'aenv-lock-'));
});
afterEach(() => rm(scratch, { recursive: true, force: true }));

/** Another process that holds the claim `name` on `directory` until it is killed. */
async function holder(
  name: 'claimHome' | 'claimRuntime',
  directory: string,
): Promise<Disposable & { end(): Promise<void> }> {
  const module = JSON.stringify(join(import.meta.dirname, 'directory-lock.ts'));
  const program = `import { ${name} } from ${module}; globalThis.held = await ${name}(${JSON.stringify(directory)});
    console.log('held'); setInterval(() => {}, 1000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  return {
    async end() {
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
    [Symbol.dispose]: () => {
      child.kill('SIGKILL');
    },
  };
}

describe.each([
  ['claimHome', claimHome, 'home_path'],
  ['claimRuntime', claimRuntime, 'runtime_path'],
] as const)('%s', (name, claim, key) => {
  it('makes a private directory and keeps other servers out until the holder is dead', {
    timeout: 30_000,
  }, async () => {
    const directory = join(scratch, 'deep/dir');
    using other = await holder(name, directory);
    expect((await stat(directory)).mode & 0o777).toBe(0o700);
    await expect(claim(directory)).rejects.toMatchObject({
      code: 'conflict',
      message: `${key} ${directory} is in use by another server`,
    });
    await other.end();
    await using stack = new AsyncDisposableStack();
    stack.use(await claim(directory));
  });

  it('refuses what cannot be a directory', async () => {
    await writeFile(join(scratch, 'file'), '');
    await expect(claim(join(scratch, 'file/dir'))).rejects.toThrow(`${key} ${scratch}/file/dir cannot be made`);
  });
});

describe('the runtime directory', () => {
  it('is gone afterwards, unless something is in it', async () => {
    const directory = join(scratch, 'runtime');
    const first = await claimRuntime(directory);
    await mkdir(join(directory, 'empty'));
    await first[Symbol.asyncDispose]();
    expect(await readdir(scratch)).toEqual([]);
    const second = await claimRuntime(directory);
    await mkdir(join(directory, 'empty'));
    await mkdir(join(directory, 'full/inner'), { recursive: true });
    await second[Symbol.asyncDispose]();
    expect(await readdir(directory)).toEqual(['full']);
  });

  it('may have been removed by somebody else', async () => {
    const directory = join(scratch, 'runtime');
    const claim = await claimRuntime(directory);
    await rm(directory, { recursive: true });
    await claim[Symbol.asyncDispose]();
    await using stack = new AsyncDisposableStack();
    stack.use(await claimRuntime(directory));
  });
});
