import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Agent, WatchEvent } from '@agentenv/agent';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';
import { sh } from './support/shell.ts';

const CREATE = 0x100;
const MODIFY = 0x2;
const ATTRIB = 0x4;
const DELETE = 0x200;
const MOVED_FROM = 0x40;
const MOVED_TO = 0x80;
const DELETE_SELF = 0x400;
const OVERFLOW = 0x4000;

let guest: SanitizedGuest;
let agent: Agent;
let directory: string;
let count = 0;
beforeAll(async () => {
  guest = await startSanitizedGuest();
  agent = await guest.connect();
});
beforeEach(async () => {
  directory = join(guest.directory, `case-${count++}`);
  await mkdir(directory);
});
afterAll(async () => {
  await agent?.[Symbol.asyncDispose]();
  await guest.stop();
});

interface Watching extends AsyncDisposable {
  readonly events: readonly WatchEvent[];
  /** Resolves when an event with that path and bit of the mask came. */
  saw(path: string, bit: number): Promise<void>;
  of(path: string): readonly number[];
}

async function watch(path: string, recursive: boolean): Promise<Watching> {
  const events: WatchEvent[] = [];
  const watching = await agent.watch(path, { recursive }, (event) => events.push(event));
  return {
    events,
    async saw(name, bit) {
      const seen = () => events.some((event) => event.path === name && (event.mask & bit) !== 0);
      await expect.poll(seen, { timeout: 15_000, interval: 5, message: `${name} with ${bit}` }).toBe(true);
    },
    of: (name) => events.filter((event) => event.path === name).map(({ mask }) => mask),
    [Symbol.asyncDispose]: () => watching[Symbol.asyncDispose](),
  };
}

describe('a watch', () => {
  test('tells what happens in its directory, from the moment it is armed, and nothing below', async () => {
    await sh(agent, `mkdir ${directory}/sub`);
    await using watching = await watch(directory, false);
    await sh(agent, `cd ${directory}; echo 1 > f; chmod 600 f; mv f g; rm g; touch sub/x; touch end`);
    await watching.saw('end', CREATE);
    expect(watching.of('f').filter((mask) => mask !== MODIFY)).toEqual([CREATE, ATTRIB, MOVED_FROM]);
    expect(watching.of('f')).toContain(MODIFY);
    expect(watching.of('g').filter((mask) => mask !== ATTRIB)).toEqual([MOVED_TO, DELETE]);
    const cookies = watching.events.filter(({ mask }) => (mask & (MOVED_FROM | MOVED_TO)) !== 0);
    expect(cookies[0]?.cookie).toBe(cookies[1]?.cookie);
    expect(watching.events.some(({ path }) => path.startsWith('sub/'))).toBe(false);
  });

  test('of a tree misses nothing in directories that appear faster than they can be watched', async () => {
    await using watching = await watch(directory, true);
    const script = `
import os
for i in range(200):
    os.makedirs(f'${directory}/d{i}/a/b')
    for path in (f'd{i}/f', f'd{i}/a/f', f'd{i}/a/b/f'):
        with open(f'${directory}/{path}', 'w') as file: file.write('x')
open('${directory}/end', 'w')`;
    await sh(agent, `python3 - <<'EOF'${script}\nEOF`);
    await watching.saw('end', CREATE);
    for (let index = 0; index < 200; index++) {
      for (const path of [
        `d${index}`,
        `d${index}/a`,
        `d${index}/a/b`,
        `d${index}/f`,
        `d${index}/a/f`,
        `d${index}/a/b/f`,
      ]) {
        expect([path, watching.of(path).filter((mask) => mask === CREATE)]).toEqual([path, [CREATE]]);
      }
      expect(watching.of(`d${index}/a/b/f`)).toContain(MODIFY);
    }
    const order = watching.events.filter(({ mask }) => mask === CREATE).map(({ path }) => path);
    expect(order.indexOf('d7')).toBeLessThan(order.indexOf('d7/a'));
    expect(order.indexOf('d7/a')).toBeLessThan(order.indexOf('d7/a/b/f'));
  });

  test('has a new directory armed before the host hears of it', async () => {
    await using watching = await watch(directory, true);
    for (let index = 0; index < 20; index++) {
      await agent.makeDir(join(directory, `n${index}`), { uid: 0, gid: 0, mode: 0o755 });
      await watching.saw(`n${index}`, CREATE);
      await sh(agent, `echo > ${directory}/n${index}/f; rm ${directory}/n${index}/f`);
      await watching.saw(`n${index}/f`, CREATE);
      await watching.saw(`n${index}/f`, DELETE);
    }
  });

  test('follows directories that are moved inside, into and out of the tree', async () => {
    const outside = `${directory}-outside`;
    await sh(agent, `mkdir -p ${directory}/one/deep ${outside}/in`);
    await using watching = await watch(directory, true);
    await sh(agent, `mv ${directory}/one ${directory}/two; touch ${directory}/two/deep/x`);
    await watching.saw('two/deep/x', CREATE);
    expect(watching.of('one')).toContain(MOVED_FROM);
    expect(watching.of('two')).toEqual([MOVED_TO]);
    await sh(agent, `mv ${outside}/in ${directory}/in; touch ${directory}/in/y`);
    await watching.saw('in/y', CREATE);
    await sh(
      agent,
      `mv ${directory}/two ${outside}/gone; sleep 0.2; touch ${outside}/gone/deep/z; touch ${directory}/end`,
    );
    await watching.saw('end', CREATE);
    expect(watching.events.some(({ path }) => path.endsWith('z'))).toBe(false);
  });

  test('sees an upload as created and modified, and never its staging', async () => {
    await using watching = await watch(directory, true);
    const body = async function* () {
      yield Buffer.from('content');
    };
    const request = { path: join(directory, 'new/file'), uid: 0, gid: 0, mode: 0o644, xattrs: new Map() };
    await agent.writeFile(request, body());
    await watching.saw('new/file', CREATE);
    await watching.saw('new/file', MODIFY);
    await agent.writeFile(request, body());
    await agent.remove(join(directory, 'new'));
    await watching.saw('new', DELETE);
    expect(new Set(watching.events.map(({ path }) => path))).toEqual(new Set(['new', 'new/file']));
  });

  test('tells that its directory is gone', async () => {
    await using watching = await watch(directory, true);
    await agent.remove(directory);
    await watching.saw('', DELETE_SELF);
  });

  test('flooded with more than anybody reads: an overflow, and right again afterwards', {
    timeout: 60_000,
  }, async () => {
    await using watching = await watch(directory, true);
    const script = `
import os
for round in range(6):
    for i in range(20000):
        open(f'${directory}/f{i}', 'w').close()
        os.unlink(f'${directory}/f{i}')
os.makedirs('${directory}/after/overflow')`;
    await sh(agent, `python3 - <<'EOF'${script}\nEOF`);
    // Everything is told, or an overflow says that it is not; either way a directory made last is watched in the end.
    await expect
      .poll(() => watching.events.some(({ mask }) => mask === OVERFLOW) || watching.of('after').length > 0, {
        timeout: 20_000,
      })
      .toBe(true);
    await expect
      .poll(
        async () => {
          await sh(agent, `touch ${directory}/after/overflow/probe`);
          return watching.of('after/overflow/probe').length;
        },
        { timeout: 20_000 },
      )
      .toBeGreaterThan(0);
  });

  test('of what is not a directory is refused', async () => {
    await sh(agent, `touch ${directory}/file`);
    await expect(watch(join(directory, 'file'), true)).rejects.toMatchObject({ details: { status: 'NOT_DIRECTORY' } });
    await expect(watch(join(directory, 'none'), true)).rejects.toMatchObject({ details: { status: 'NOT_FOUND' } });
  });

  test('that ends leaves no watcher; the sixty-fifth at once is refused', { timeout: 60_000 }, async () => {
    const watchers = async () =>
      Number((await sh(agent, 'cat /proc/[0-9]*/stat | grep -c "aenv-guest" || true')).stdout);
    const before = await watchers();
    const watches = await Promise.all(Array.from({ length: 64 }, () => watch(directory, false)));
    await expect(watch(directory, false)).rejects.toMatchObject({ details: { status: 'LIMIT' } });
    for (const watching of watches) await watching[Symbol.asyncDispose]();
    await expect.poll(watchers, { timeout: 10_000 }).toBe(before);
    await (await watch(directory, false))[Symbol.asyncDispose]();
  });
});
