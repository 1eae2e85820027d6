import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { createSeededRandom, type SeededRandom } from '@agentenv/core/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { EVENTS, FRAME, LIMITS } from '../generated/protocol.ts';
import { connectScriptedAgent, frameBytes, type ScriptedGuest, u32Bytes } from '../testing/scripted-guest.ts';

/** What a hostile guest may cost the server, bytes (over a whole run). */
const MEMORY_BUDGET = 64 * 1024 * 1024;
const SEEDS = 150;

let collectGarbage: () => void;
beforeAll(() => {
  setFlagsFromString('--expose-gc');
  collectGarbage = runInNewContext('gc');
});
afterAll(() => {
  setFlagsFromString('--no-expose-gc');
});

function liveMemory(): number {
  collectGarbage();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}

/** Waits until what is alive grew by less than a limit: freed buffers are given back by a thread of the collector. */
async function expectGrowth(before: number, limit: number, when = 'at the end'): Promise<void> {
  await expect.poll(() => liveMemory() - before, { timeout: 10_000, message: when }).toBeLessThan(limit);
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

const SPAWN = {
  ...{ user: 'user', argv: ['x'], env: {}, cwd: '', defaultCwd: '', stdin: true, tag: '' },
  ...{ config: new Uint8Array(0), killAfterMs: 0 },
};

/** An agent with one of everything open, whose consumers never settle; returns the stream ids. */
async function busyAgent() {
  const { agent, guest } = await connectScriptedAgent();
  const outcomes: Promise<unknown>[] = [];
  const spawning = agent.spawn(SPAWN);
  const spawn = await guest.request('spawn');
  guest.respond(spawn.stream, 'spawn', { pid: 1, uid: 0, gid: 0 });
  const process = await spawning;
  process.onOutput(() => new Promise(() => {}));
  const connecting = agent.connectPort(80);
  const connect = await guest.request('connectPort');
  guest.respond(connect.stream, 'connectPort', { address: '' });
  await connecting;
  const listening = agent.listenPort(90, () => {});
  const listen = await guest.request('listenPort');
  guest.respond(listen.stream, 'listenPort', {});
  await listening;
  const watching = agent.watch('/', { recursive: true }, () => {});
  const watch = await guest.request('watch');
  guest.respond(watch.stream, 'watch', {});
  await watching;
  outcomes.push(agent.stat('/'), agent.listDir('/', { depth: 1, max: 1000 }), agent.listProcesses(), agent.metrics());
  const pending = [
    (await guest.request('stat')).stream,
    (await guest.request('listDir')).stream,
    (await guest.request('listProcesses')).stream,
    (await guest.request('metrics')).stream,
  ];
  const settled = Promise.allSettled(outcomes);
  const streams = [0, spawn.stream, connect.stream, listen.stream, watch.stream, ...pending] as const;
  return { agent, guest, streams, settled };
}

/** Bytes that are nearly right: real streams and types, with lengths and bodies that may be anything. */
function hostileBytes(random: SeededRandom, streams: readonly [number, ...number[]]): Buffer {
  const stream = random.pick([
    random.pick(streams) + random.below(4),
    0x8000_0000 + random.below(64),
    random.below(0xffff_ffff),
  ] as const);
  const type = random.below(20) === 0 ? random.below(256) : random.pick([0, 1, 2, 3, 5, 6] as const);
  const sizes: Readonly<Record<number, number>> = { 0: random.below(3000), 1: 0, 2: 4, 3: 4 };
  const payload = Buffer.from(random.bytes(sizes[type] ?? 2 + random.below(200)));
  // Small numbers where counts, kinds, statuses and lengths are read, so that bodies are often half right.
  for (let at = 0; at + 4 <= payload.length && random.below(3) > 0; at += 4) payload.writeUInt32LE(random.below(8), at);
  const bytes = frameBytes(stream, type, payload);
  if (random.below(50) === 0) bytes.writeUInt32LE(random.below(0xffff_ffff), 0);
  if (random.below(50) === 0) return bytes.subarray(0, random.below(bytes.length));
  return bytes;
}

describe('a hostile guest', () => {
  it('sends what it likes: its channel closes with a reason, every call settles, memory stays', {
    timeout: 60_000,
  }, async () => {
    const before = liveMemory();
    let closedByReason = 0;
    for (let seed = 1; seed <= SEEDS; seed++) {
      const random = createSeededRandom(seed);
      const { agent, guest, streams, settled } = await busyAgent();
      let closed = false;
      void agent.closed.then(() => {
        closed = true;
      });
      for (let frame = 0; frame < 200 && !closed; frame++) {
        guest.raw(hostileBytes(random, streams));
        if (frame % 20 === 0) await turn();
      }
      await turn();
      if (closed) {
        const { kind, reason } = await agent.closed;
        expect(kind, `seed ${seed}`).toBe('protocol');
        expect(reason).not.toBe('');
        closedByReason++;
      }
      await agent[Symbol.asyncDispose]();
      await settled;
      if (seed % 50 === 0) await expectGrowth(before, MEMORY_BUDGET, `after seed ${seed}`);
    }
    expect(closedByReason).toBeGreaterThan(SEEDS / 2);
    await expectGrowth(before, MEMORY_BUDGET);
  });

  it('cannot make the host keep large buffers for tiny pieces of output', async () => {
    const { agent, guest, streams } = await busyAgent();
    await using _agent = agent;
    const before = liveMemory();
    const output = streams[1] + 2;
    const padding = frameBytes(0xfff_fff0, FRAME.DATA, Buffer.alloc(LIMITS.MAX_DATA));
    for (let index = 0; index < 2000; index++) {
      guest.raw(Buffer.concat([frameBytes(output, FRAME.DATA, Buffer.alloc(1)), padding]));
      if (index % 100 === 0) await turn();
    }
    await agentStillAnswers(agent, guest);
    await expectGrowth(before, 8 * 1024 * 1024);
  });

  it('that opens connections without end and reads nothing is cut off', { timeout: 60_000 }, async () => {
    const { agent, guest, streams } = await busyAgent();
    const before = liveMemory();
    guest.stopReading();
    let closed = false;
    void agent.closed.then(() => {
      closed = true;
    });
    for (let batch = 0; batch < 200 && !closed; batch++) {
      const events = Array.from({ length: 1000 }, (_value, index) => {
        const body = Buffer.concat([Buffer.alloc(2), u32Bytes(0x8000_0000 + batch * 1000 + index), Buffer.alloc(2)]);
        body.writeUInt16LE(EVENTS.accepted.kind);
        return frameBytes(streams[3], FRAME.EVENT, body);
      });
      guest.raw(Buffer.concat(events));
      await turn();
    }
    expect(await agent.closed).toEqual({ kind: 'protocol', reason: 'the guest reads no more' });
    await expectGrowth(before, MEMORY_BUDGET);
  });

  it('that announces a control frame of the largest size and never sends it costs that much, once', async () => {
    const { agent, guest, streams } = await busyAgent();
    await using _agent = agent;
    const before = liveMemory();
    const header = frameBytes(streams[1], FRAME.EVENT, u32Bytes(0));
    header.writeUInt32LE(LIMITS.MAX_CONTROL, 0);
    guest.raw(header);
    await turn();
    await expectGrowth(before, 2 * LIMITS.MAX_CONTROL);
  });
});

async function agentStillAnswers(agent: { ping(): Promise<unknown> }, guest: ScriptedGuest): Promise<void> {
  const ping = agent.ping();
  guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 1n });
  await ping;
}
