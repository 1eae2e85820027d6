import { open, readdir, readFile, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer();
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  await server[Symbol.asyncDispose]();
});

async function create(template: string, envs: Record<string, string> = {}): Promise<Sandbox> {
  const sandbox = await Sandbox.create(template, { ...server.sdk, timeoutMs: 600_000, envs });
  onTestFinished(async () => {
    await sandbox.kill();
  });
  return sandbox;
}

const shell = async (sandbox: Sandbox, command: string): Promise<string> =>
  (await sandbox.commands.run(command)).stdout.trim();

/** Counts to a file, ten times a second. */
const COUNTER =
  'i=0; while true; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.1; done';

async function startCounter(sandbox: Sandbox): Promise<number> {
  const { pid } = await sandbox.commands.run(COUNTER, { background: true, timeoutMs: 0 });
  await waitUntil(() => shell(sandbox, 'cat /tmp/count || true'), { timeout: 20_000, what: 'the counter' });
  return pid;
}

describe('a snapshot', () => {
  it('starts sandboxes in which its processes live on, under a name of their own, and goes when nobody needs it', async () => {
    const source = await create('base', { KEPT: 'yes' });
    const pid = await startCounter(source);
    await source.files.write('note.txt', 'before');
    const { snapshotId, names } = await source.createSnapshot({ name: 'counting' });
    expect({ snapshotId, names }).toEqual({
      snapshotId: 'default/counting:default',
      names: ['default/counting:default'],
    });
    const counted = Number(await shell(source, 'cat /tmp/count'));
    await source.files.write('note.txt', 'after');
    const listed = await Sandbox.listSnapshots({ ...server.sdk, sandboxId: source.sandboxId }).nextItems();
    expect(listed).toEqual([{ snapshotId, names }]);
    expect(await source.kill()).toBe(true);

    const children = await Promise.all([create(snapshotId), create('counting', { KEPT: 'changed' })]);
    const secrets = new Set<string>();
    for (const child of children) {
      const from = Number(await shell(child, 'cat /tmp/count'));
      expect(from).toBeLessThan(counted + 100);
      await waitUntil(async () => Number(await shell(child, 'cat /tmp/count')) > from + 2, {
        timeout: 20_000,
        what: 'the counter to go on',
      });
      expect((await child.commands.list()).map((process) => process.pid)).toContain(pid);
      expect(await child.files.read('note.txt')).toBe('before');
      expect(await shell(child, 'hostname; echo $E2B_SANDBOX_ID')).toBe(`${child.sandboxId}\n${child.sandboxId}`);
      expect(
        await shell(child, 'date +%s').then((seconds) => Math.abs(Number(seconds) - Date.now() / 1000)),
      ).toBeLessThan(2);
      secrets.add(await shell(child, 'head -c 16 /dev/urandom | od -An -tx1'));
      await child.files.write('note.txt', child.sandboxId);
    }
    expect(secrets.size).toBe(2);
    expect(await Promise.all(children.map((child) => shell(child, 'echo $KEPT')))).toEqual(['yes', 'changed']);
    const [one, two] = children;
    expect(await one?.files.read('note.txt')).toBe(one?.sandboxId);
    // The token of one opens nothing of the other.
    const stolen = new URL(`${server.url}/files?path=note.txt&username=user`);
    const token = (one as unknown as { readonly envdAccessToken: string }).envdAccessToken;
    const theft = await fetch(stolen, {
      headers: { 'e2b-sandbox-id': two?.sandboxId ?? '', 'e2b-sandbox-port': '49983', 'x-access-token': token },
    });
    expect(theft.status).toBe(401);

    await expect(Sandbox.deleteSnapshot(snapshotId, server.sdk)).rejects.toThrow(/in use/);
    await Promise.all(children.map((child) => child.kill()));
    expect(await Sandbox.deleteSnapshot(snapshotId, server.sdk)).toBe(true);
    expect(await Sandbox.deleteSnapshot(snapshotId, server.sdk)).toBe(false);
    expect(await readdir(join(server.home, 'snapshots'))).toEqual([]);
  });

  it('interrupts no stream: 10 MB of numbered output across five of them have no gap', async () => {
    const source = await create('base');
    const lines = 1_250_000;
    const pieces = 125;
    // Slow enough to be under way for all of them, however fast the host is.
    const program = `for i in $(seq 0 ${pieces - 1}); do seq -f %07.0f $((i*${lines / pieces})) $(((i+1)*${lines / pieces}-1)); sleep 0.05; done`;
    let next = 0;
    let wrong: string | undefined;
    let rest = '';
    const running = await source.commands.run(program, {
      background: true,
      timeoutMs: 0,
      onStdout(text) {
        const complete = (rest + text).split('\n');
        rest = complete.pop() ?? '';
        for (const line of complete) {
          if (line !== String(next).padStart(7, '0')) wrong ??= `${line} instead of ${next}`;
          next++;
        }
      },
    });
    const at: number[] = [];
    for (let taken = 0; taken < 5; taken++) {
      await waitUntil(() => next > ((taken + 1) * lines) / 10, { timeout: 60_000, what: 'output' });
      await source.createSnapshot({ name: 'streaming' });
      at.push(next);
    }
    expect((await running.wait()).exitCode).toBe(0);
    expect({ wrong, next, rest }).toEqual({ wrong: undefined, next: lines, rest: '' });
    expect(at.every((line) => line < lines)).toBe(true);
    // Each of them is a snapshot of its own, with its share of the output still to come.
    const snapshots = await Sandbox.listSnapshots({ ...server.sdk, name: 'streaming' }).nextItems();
    expect(snapshots).toHaveLength(5);
    const child = await create(snapshots[4]?.snapshotId ?? '');
    expect((await child.commands.list()).map((process) => process.pid)).toContain(running.pid);
  });

  it('of a chain outlives what it came from, and a crash of the server', async () => {
    let sandbox = await create('base');
    const pid = await startCounter(sandbox);
    const chain: string[] = [];
    for (let link = 0; link < 3; link++) {
      await sandbox.files.write(`link-${link}`, `of ${link}`);
      const { snapshotId } = await sandbox.createSnapshot();
      chain.push(snapshotId);
      await sandbox.kill();
      if (link < 2) sandbox = await create(snapshotId);
    }
    for (const snapshotId of chain.slice(0, 2)) expect(await Sandbox.deleteSnapshot(snapshotId, server.sdk)).toBe(true);
    await server.kill9();
    await server.restart();
    const last = await create(chain[2] ?? '');
    for (let link = 0; link < 3; link++) expect(await last.files.read(`link-${link}`)).toBe(`of ${link}`);
    expect((await last.commands.list()).map((process) => process.pid)).toContain(pid);
  });

  it('whose files were cut short or changed is refused by name, and nothing else is', async () => {
    const source = await create('base');
    await source.files.write('note.txt', 'fine');
    const snapshots = join(server.home, 'snapshots');
    const directoryOf = async (snapshotId: string): Promise<string> => {
      const template = (await (await server.api(`/templates/${encodeURIComponent(snapshotId)}`)).json()) as {
        builds: { buildID: string }[];
      };
      return join(snapshots, template.builds[0]?.buildID ?? '');
    };
    const flip = async (path: string): Promise<void> => {
      await using file = await open(path, 'r+');
      const middle = Math.floor((await file.stat()).size / 2);
      const { buffer } = await file.read(Buffer.alloc(1), 0, 1, middle);
      await file.write(Buffer.from([(buffer[0] ?? 0) ^ 1]), 0, 1, middle);
    };
    const cut = async (path: string): Promise<void> => truncate(path, Math.floor((await readFile(path)).length / 2));
    const damages: (readonly [RegExp, (path: string) => Promise<void>])[] = [
      [/^memory(-\d+)?\.layer$/, flip],
      [/^memory(-\d+)?\.layer$/, cut],
      [/^disk-\d+\.qcow2$/, flip],
      [/^devices\.state$/, cut],
      [/^manifest\.json$/, flip],
    ];
    for (const [pattern, damage] of damages) {
      // Layers go on to be part of what their source captures next: that one is not asked again.
      const taken = await create('base');
      const { snapshotId } = await taken.createSnapshot();
      const directory = await directoryOf(snapshotId);
      // The newest file of its kind belongs to this snapshot alone.
      const file =
        (await readdir(directory))
          .filter((name) => pattern.test(name))
          .toSorted()
          .at(-1) ?? '';
      await damage(join(directory, file));
      const error = await Sandbox.create(snapshotId, server.sdk).catch((caught: unknown) => caught);
      expect(String(error), file).toMatch(/is damaged/);
      if (file !== 'manifest.json') expect(String(error)).toContain(file);
      expect(await Sandbox.deleteSnapshot(snapshotId, server.sdk)).toBe(true);
    }
    const { snapshotId } = await source.createSnapshot();
    const child = await create(snapshotId);
    expect(await child.files.read('note.txt')).toBe('fine');
    expect(await source.files.read('note.txt')).toBe('fine');
  });
});
