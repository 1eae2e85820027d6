import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createExec } from '../exec.ts';
import { createTestNamespace } from '../testing/fake-internet.ts';
import { createIpBatch } from './ip-batch.ts';

describe('the ip process of a namespace', () => {
  const clock = createRealClock();
  const exec = createExec({ clock });
  const stack = new AsyncDisposableStack();
  let netns: string;

  beforeAll(async () => {
    const directory = await mkdtemp(join(tmpdir(), 'aenv-ip-'));
    stack.defer(() => rm(directory, { recursive: true, force: true }));
    netns = join(directory, 'netns');
    stack.use(await createTestNamespace(exec, netns, []));
  });

  afterAll(() => stack.disposeAsync());

  async function links(): Promise<string> {
    return exec({ argv: ['nsenter', `--net=${netns}`, 'ip', '-brief', 'link'], deadlineMs: 5_000 });
  }

  test('runs commands of many callers, in order', async () => {
    await using batch = createIpBatch({ netns, clock });
    await Promise.all(
      Array.from({ length: 20 }, (_, index) => batch.run([`link add d${index} type veth peer name p${index}`])),
    );
    await Promise.all(Array.from({ length: 19 }, (_, index) => batch.run([`link del d${index}`])));
    const names = (await links())
      .trim()
      .split('\n')
      .map((line) => line.split(/[@ ]/)[0]);
    expect(names.sort()).toEqual(['d19', 'lo', 'p19']);
    await batch.run(['link del d19']);
  });

  test('says which command failed and why, and goes on', async () => {
    await using batch = createIpBatch({ netns, clock });
    await expect(batch.run(['link del nowhere', 'link add e0 type veth peer name e1'])).rejects.toMatchObject({
      code: 'internal',
      message: expect.stringContaining('nowhere'),
    });
    expect(await links()).toContain('e0');
    await batch.run(['link del e0']);
  });

  test('a namespace that is gone is an error of the call, and of the next one too', async () => {
    await using batch = createIpBatch({ netns: '/no/such/netns', clock });
    await expect(batch.run(['link set lo up'])).rejects.toMatchObject({ code: 'internal' });
    await expect(batch.run(['link set lo up'])).rejects.toMatchObject({ code: 'internal' });
  });
});
