import { appendFile, mkdir, mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createFakeClock, createRecordingLog } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createDeadLetters, DEAD_LETTER_FILE, DEFAULT_DEAD_LETTER_LIMITS } from './dead-letters.ts';
import type { EventMessage } from './event-bus.ts';
import { DEFAULT_OUTBOX_LIMITS, type OutboxLimits, openOutbox } from './outbox.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-webhook-files-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

function message(id: string, text = ''): EventMessage {
  const event = {
    id,
    type: 'sandbox.lifecycle.paused',
    timestamp: '2026-01-01T00:00:00.000Z',
    sandbox_id: 'one',
    text,
  };
  return {
    ...{ id, sandboxId: 'one', type: 'sandbox.lifecycle.paused', at: Date.UTC(2026, 0, 1) },
    json: JSON.stringify(event),
  };
}

const linesOf = async (file: string): Promise<unknown[]> =>
  (await readFile(join(directory, file), 'utf8'))
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as unknown);

describe('dead letters', () => {
  const start = (limits: Partial<typeof DEFAULT_DEAD_LETTER_LIMITS> = {}) => {
    const log = createRecordingLog();
    const letters = createDeadLetters({
      ...{ directory, clock: createFakeClock(), log, limits: { ...DEFAULT_DEAD_LETTER_LIMITS, ...limits } },
    });
    return { log, letters };
  };

  it('are lines of JSON that say where to, why and what, for the owner alone', async () => {
    const { letters } = start();
    letters.append('wh', message('a'), { reason: 'attempts-exhausted', attempts: 3, lastError: 'it answered "500"' });
    letters.append('wh', message('b'), { reason: 'queue-full', attempts: 0, lastError: undefined });
    await letters[Symbol.asyncDispose]();
    expect(await linesOf(DEAD_LETTER_FILE)).toEqual([
      {
        ...{ at: '2026-01-01T00:00:00.000Z', webhook_id: 'wh', reason: 'attempts-exhausted', attempts: 3 },
        ...{ last_error: 'it answered "500"', event: JSON.parse(message('a').json) as unknown },
      },
      {
        ...{ at: '2026-01-01T00:00:00.000Z', webhook_id: 'wh', reason: 'queue-full', attempts: 0 },
        event: JSON.parse(message('b').json) as unknown,
      },
    ]);
    expect((await stat(join(directory, DEAD_LETTER_FILE))).mode & 0o777).toBe(0o600);
  });

  it('never take more than their files may, the oldest go first, over starts too', async () => {
    const dead = { reason: 'queue-full', attempts: 0, lastError: undefined } as const;
    for (let run = 0; run < 4; run++) {
      const { letters } = start({ fileBytes: 2_000, files: 2 });
      for (let index = 0; index < 10; index++) letters.append('wh', message(`${run}-${index}`, 'x'.repeat(200)), dead);
      await letters[Symbol.asyncDispose]();
    }
    const files = (await readdir(directory)).toSorted();
    expect(files).toEqual(['dead-letters.jsonl', 'dead-letters.jsonl.1', 'dead-letters.jsonl.2']);
    for (const file of files) expect((await stat(join(directory, file))).size).toBeLessThanOrEqual(2_000);
    const ids = [];
    for (const file of files.toReversed()) {
      for (const line of await linesOf(file)) ids.push((line as { event: { id: string } }).event.id);
    }
    expect(ids.at(-1)).toBe('3-9');
    expect(ids).toEqual(ids.toSorted());
  });

  it('that cannot be written are an error of the log', async () => {
    const { letters, log } = start();
    await rm(directory, { recursive: true });
    letters.append('wh', message('a'), { reason: 'queue-full', attempts: 0, lastError: undefined });
    await letters[Symbol.asyncDispose]();
    expect(log.find('error', 'could not be written down')).toMatchObject([{ fields: { count: 1 } }]);
  });
});

describe('the outbox', () => {
  const start = async (limits: Partial<OutboxLimits> = {}) => {
    const log = createRecordingLog();
    const path = join(directory, 'outbox.jsonl');
    const outbox = await openOutbox({ path, log, limits: { ...DEFAULT_OUTBOX_LIMITS, ...limits } });
    const left = () => outbox.left.map(({ message: { id }, webhooks }) => [id, [...webhooks]]);
    return { outbox, log, path, left };
  };

  it('that overflows while it is being written makes that good with the next lines', async () => {
    const first = await start({ waitingBytes: 600 });
    first.outbox.add(message('a', 'x'.repeat(300)), ['one']);
    // The first line is on its way; then there is room for one of these two.
    await Promise.resolve();
    await Promise.resolve();
    first.outbox.add(message('b', 'x'.repeat(300)), ['one']);
    first.outbox.add(message('c', 'x'.repeat(300)), ['one']);
    await first.outbox.flushed();
    expect(first.log.find('error', 'could not be written')).toHaveLength(1);
    const next = await start();
    expect(next.left()).toEqual(['a', 'b', 'c'].map((id) => [id, ['one']]));
    await next.outbox[Symbol.asyncDispose]();
    await first.outbox[Symbol.asyncDispose]();
  });

  it('gives the next server what was not settled, in order and byte for byte', async () => {
    const first = await start();
    expect(first.left()).toEqual([]);
    for (const id of ['a', 'b', 'c', 'd']) first.outbox.add(message(id, 'ü"\\\n'), ['one', 'two']);
    first.outbox.settle('a', 'one');
    first.outbox.settle('a', 'two');
    first.outbox.settle('b', 'two');
    first.outbox.settle('unknown', 'one');
    await first.outbox[Symbol.asyncDispose]();
    for (let run = 0; run < 2; run++) {
      const next = await start();
      expect(next.left()).toEqual([
        ['b', ['one']],
        ['c', ['one', 'two']],
        ['d', ['one', 'two']],
      ]);
      expect(next.outbox.left[0]?.message).toEqual(message('b', 'ü"\\\n'));
      await next.outbox[Symbol.asyncDispose]();
    }
    expect((await stat(first.path)).mode & 0o777).toBe(0o600);
  });

  it('does without lines it cannot read, as one that a dying server did not finish', async () => {
    const first = await start();
    first.outbox.add(message('a'), ['one']);
    await first.outbox[Symbol.asyncDispose]();
    await appendFile(
      first.path,
      `null\n{"to":["one"],"event":{"id":7}}\n{"to":7,"event":${message('x').json}}\n{"to":["o`,
    );
    const next = await start();
    expect(next.left()).toEqual([['a', ['one']]]);
    expect(next.log.find('warn', 'could not be read')).toMatchObject([{ fields: { lines: 4 } }]);
    next.outbox.add(message('b'), ['one']);
    await next.outbox[Symbol.asyncDispose]();
    const last = await start();
    expect(last.left().map(([id]) => id)).toEqual(['a', 'b']);
    await last.outbox[Symbol.asyncDispose]();
  });

  it('does not grow with what is settled', async () => {
    const { outbox, path } = await start({ rewriteBytes: 10_000 });
    outbox.add(message('kept'), ['one']);
    for (let index = 0; index < 500; index++) {
      outbox.add(message(`m${index}`, 'x'.repeat(500)), ['one']);
      outbox.settle(`m${index}`, 'one');
      if (index % 10 === 0) await outbox.flushed();
    }
    outbox.add(message('last'), ['one']);
    await outbox[Symbol.asyncDispose]();
    expect((await stat(path)).size).toBeLessThan(100_000);
    const next = await start();
    expect(next.left().map(([id]) => id)).toEqual(['kept', 'last']);
    await next.outbox[Symbol.asyncDispose]();
  });

  it('writes down later what it could not write', async () => {
    const { outbox, path, log } = await start({ waitingBytes: 300 });
    outbox.add(message('a'), ['one']);
    outbox.add(message('b', 'x'.repeat(500)), ['one']);
    outbox.add(message('c'), ['one']);
    await outbox[Symbol.asyncDispose]();
    expect(log.find('error', 'could not be written')).toHaveLength(1);
    expect(await readFile(path, 'utf8')).toContain('"id":"c"');
    const next = await start();
    expect(next.left().map(([id]) => id)).toEqual(['a', 'b', 'c']);
    await next.outbox[Symbol.asyncDispose]();
  });

  it('that cannot be written at the start is written as soon as it can', async () => {
    const former = await start();
    former.outbox.add(message('a'), ['one']);
    await former.outbox[Symbol.asyncDispose]();
    await mkdir(`${former.path}.new`);
    const { outbox, log, left } = await start();
    expect(left().map(([id]) => id)).toEqual(['a']);
    expect(log.find('error', 'could not be written')).toHaveLength(1);
    await rm(`${former.path}.new`, { recursive: true });
    outbox.add(message('b'), ['one']);
    await outbox[Symbol.asyncDispose]();
    const next = await start();
    expect(next.left().map(([id]) => id)).toEqual(['a', 'b']);
    await next.outbox[Symbol.asyncDispose]();
  });

  it('that cannot be read keeps the server from starting', async () => {
    await mkdir(join(directory, 'outbox.jsonl'));
    await expect(start()).rejects.toMatchObject({ code: 'EISDIR' });
  });
});
