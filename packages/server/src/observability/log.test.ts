import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Log } from '@agentenv/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createLog, type LogFormat, REDACTED_KEYS } from './log.ts';

let scratch: string;
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'aenv-log-'));
});
afterEach(() => rm(scratch, { recursive: true, force: true }));

/** What `use` makes the log write. */
async function written(format: LogFormat, use: (log: Log) => void): Promise<string> {
  const path = join(scratch, format);
  await using file = await open(path, 'w');
  const { log, flush } = createLog({ format, level: 'info', fd: file.fd });
  use(log);
  flush();
  return readFile(path, 'utf8');
}

describe('the log', () => {
  it.each(['json', 'pretty', 'compact'] as const)('never shows a secret as %s', async (format) => {
    const secrets = Object.fromEntries(REDACTED_KEYS.map((key) => [key, `secret-of-${key}`]));
    const text = await written(format, (log) => {
      log.info(secrets, 'first level');
      log.warn({ request: secrets }, 'second level');
      log.error({ request: { headers: secrets } }, 'third level');
      log.child({ record: secrets }).info({}, 'in a child');
    });
    expect(text).toContain('third level');
    expect(text).toContain('in a child');
    expect(text).not.toContain('secret-of-');
    expect(text).toContain('[redacted]');
  });

  it('is one JSON object per line with level, time and message', async () => {
    const text = await written('json', (log) => {
      log.debug({}, 'not wanted');
      log.info({ sandboxId: 'i1' }, 'created');
      log.error({ err: new Error('outer', { cause: new Error('inner') }) }, 'failed');
    });
    const lines = text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(lines).toMatchObject([
      { level: 'info', sandboxId: 'i1', msg: 'created', time: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/) },
      { level: 'error', msg: 'failed', err: { message: expect.stringContaining('inner') } },
    ]);
  });

  it('says with every line which request it is about, unless the line says so itself', async () => {
    const path = join(scratch, 'context');
    await using file = await open(path, 'w');
    let context: object | undefined = { requestId: 'r1', traceId: 't1' };
    const { log, flush } = createLog({ format: 'json', level: 'info', fd: file.fd, context: () => context });
    log.info({ sandboxId: 'i1' }, 'inside');
    log.child({ part: 'x' }).info({ requestId: 'own' }, 'own');
    context = undefined;
    log.info({}, 'outside');
    flush();
    // The first line may still be on its way: it is written in the background.
    const lines = async () => (await readFile(path, 'utf8')).split('\n').filter((line) => line !== '');
    await expect.poll(async () => (await lines()).length).toBe(3);
    const parsed = (await lines()).map((line) => JSON.parse(line) as Record<string, unknown>);
    const [inside, own, outside] = ['inside', 'own', 'outside'].map((msg) => parsed.find((line) => line.msg === msg));
    expect(inside).toMatchObject({ msg: 'inside', requestId: 'r1', traceId: 't1', sandboxId: 'i1' });
    expect(own).toMatchObject({ requestId: 'own', part: 'x' });
    expect(outside).not.toHaveProperty('requestId');
  });

  it('is one line per message in the compact form', async () => {
    const text = await written('compact', (log) => log.info({ a: { b: 1 } }, 'hello'));
    expect(text.trim().split('\n')).toHaveLength(1);
    expect(text).toContain('hello');
  });
});
