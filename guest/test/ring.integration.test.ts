import { randomBytes } from 'node:crypto';
import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Agent } from '@agentenv/agent';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';

/** Of the shared memory of one transfer: a page of counts and flags, then the bytes (guest/src/ring.c). */
const RING_BYTES = 512 * 1024;
const MAPPED_BYTES = 4096 + RING_BYTES;
/** The counts and flags at its beginning. */
const WORDS = 5;

const PATIENCE = { timeout: 10_000 };

let guest: SanitizedGuest;
let agent: Agent;
beforeAll(async () => {
  guest = await startSanitizedGuest();
  agent = await guest.connect();
});
afterAll(async () => {
  await agent?.[Symbol.asyncDispose]();
  await guest.stop();
});

/** Addresses of the rings a process has in its memory. */
async function ringsOf(pid: number | string): Promise<readonly number[]> {
  // It may end at any moment.
  const maps = await readFile(`/proc/${pid}/maps`, 'utf8').catch(() => '');
  return maps.split('\n').flatMap((line) => {
    const [, from, to] = /^([0-9a-f]+)-([0-9a-f]+) rw-s .*\/dev\/zero/.exec(line) ?? [];
    const start = Number.parseInt(from ?? '', 16);
    return Number.parseInt(to ?? '', 16) - start === MAPPED_BYTES ? [start] : [];
  });
}

async function children(): Promise<readonly string[]> {
  return (await readFile(`/proc/${guest.pid}/task/${guest.pid}/children`, 'utf8')).trim().split(' ').filter(Boolean);
}

/** An upload that has begun and goes on when told to. */
function stalledUpload(path: string, signal: AbortSignal, rest: AsyncIterable<Uint8Array>) {
  const goOn = Promise.withResolvers<void>();
  async function* body() {
    yield randomBytes(100_000);
    await goOn.promise;
    yield* rest;
  }
  const done = agent.writeFile({ path, uid: 0, gid: 0, mode: 0o644, xattrs: new Map() }, body(), signal);
  done.catch(() => {});
  return { done, goOn: goOn.resolve };
}

async function* endless(): AsyncGenerator<Uint8Array> {
  for (;;) yield randomBytes(50_000);
}

async function* nothing(): AsyncGenerator<Uint8Array> {}

describe('the memory a transfer shares with its worker', () => {
  test('is in no process that starts meanwhile, and gone with the transfer', async () => {
    const given = new AbortController();
    stalledUpload(join(guest.directory, 'stalled'), given.signal, nothing());
    await expect.poll(async () => (await ringsOf(guest.pid)).length, PATIENCE).toBe(1);
    const [worker] = await children();
    await using _watch = await agent.watch(guest.directory, { recursive: false }, () => {});
    const started = (await children()).filter((pid) => pid !== worker);
    expect(started).toHaveLength(1);
    expect(await ringsOf(worker ?? '')).toHaveLength(1);
    expect(await ringsOf(started[0] ?? '')).toEqual([]);
    given.abort();
    await expect.poll(() => ringsOf(guest.pid), PATIENCE).toEqual([]);
  });

  test('filled with nonsense by a worker gone wrong hurts nothing but its own transfer', async () => {
    const path = join(guest.directory, 'big');
    const content = randomBytes(3_000_000);
    await writeFile(path, content);
    for (const value of [0, 1, RING_BYTES, RING_BYTES + 1, 0x7fff_ffff, 0xffff_ffff]) {
      for (let word = 0; word < WORDS; word++) {
        const given = new AbortController();
        const upload = stalledUpload(join(guest.directory, 'target'), given.signal, endless());
        const { body } = await agent.readFile(path, undefined, given.signal);
        const download = body[Symbol.asyncIterator]();
        await expect.poll(async () => (await children()).length, PATIENCE).toBe(2);
        for (const worker of await children()) await spoil(worker, word, value);
        upload.goOn();
        // Whatever arrives: only that it ends when it is given up.
        const drained = (async () => {
          while ((await download.next()).done !== true);
        })().catch(() => {});
        await agent.ping(AbortSignal.timeout(5000));
        const other = join(guest.directory, 'other');
        async function* once() {
          yield content;
        }
        expect(
          await agent.writeFile({ path: other, uid: 0, gid: 0, mode: 0o644, xattrs: new Map() }, once()),
        ).toMatchObject({ size: BigInt(content.length) });
        expect(content.equals(await readFile(other))).toBe(true);
        given.abort();
        await drained;
        await upload.done.catch(() => {});
        await expect.poll(children, PATIENCE).toEqual([]);
      }
    }
  });

  /** Writes into the shared memory as the worker could. */
  async function spoil(worker: string, word: number, value: number): Promise<void> {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    const [ring] = await ringsOf(worker);
    if (ring === undefined) throw new Error(`process ${worker} has no ring`);
    await using memory = await open(`/proc/${worker}/mem`, 'r+');
    await memory.write(bytes, 0, bytes.length, ring + 4 * word);
  }
});
