import type { SandboxId, SandboxLogEntry } from '@agentenv/core';
import { createFakeClock, type FakeClock, sandboxRecord } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, TEST_NODE, type TestApp } from '../testing/app.ts';
import { guestWithMetrics } from '../testing/guest-metrics.ts';

const ONE = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const TWO = 'ibbbbbbbbbbbbbbbbbbbb' as SandboxId;
const NEW = 'icccccccccccccccccccc' as SandboxId;

let clock: FakeClock;
let front: TestApp;
beforeEach(async () => {
  clock = createFakeClock();
  front = await createTestApp({ clock });
  for (const id of [ONE, TWO, NEW]) front.orchestrator.put(sandboxRecord({ id }));
});
afterEach(() => front[Symbol.asyncDispose]());

const get = async (url: string) => {
  const response = await front.app.inject({ method: 'GET', url, headers: { 'x-api-key': TEST_API_KEY } });
  return { status: response.statusCode, body: response.json() };
};
const seconds = () => Math.floor(clock.now() / 1000);

describe('metrics of a sandbox', () => {
  it('have the names, units and times clients expect', async () => {
    front.sandboxMetrics.attach(ONE, guestWithMetrics());
    expect(await get(`/sandboxes/${ONE}/metrics`)).toEqual({
      status: 200,
      body: [
        {
          timestamp: new Date(clock.now()).toISOString(),
          timestampUnix: seconds(),
          cpuCount: 2,
          cpuUsedPct: 12.34,
          memTotal: 1_073_741_824,
          memUsed: 104_857_600,
          memCache: 52_428_800,
          diskTotal: 10_737_418_240,
          diskUsed: 5_368_709_120,
        },
      ],
    });
  });

  it('are narrowed by start and end, whole seconds included', async () => {
    front.sandboxMetrics.attach(ONE, guestWithMetrics({ cpuUsedPct: 50 }));
    const born = seconds();
    await clock.advance(20_500);
    const times = async (query: string) => {
      const { body } = await get(`/sandboxes/${ONE}/metrics${query}`);
      return (body as { timestampUnix: number }[]).map(({ timestampUnix }) => timestampUnix - born);
    };
    expect(await times('')).toEqual([5, 10, 15, 20]);
    expect(await times(`?start=${born + 10}`)).toEqual([10, 15, 20]);
    expect(await times(`?end=${born + 10}`)).toEqual([5, 10]);
    expect(await times(`?start=${born + 6}&end=${born + 15}`)).toEqual([10, 15]);
    expect(await times(`?start=${born + 15}&end=${born + 15}`)).toEqual([15]);
    expect(await times(`?end=${born - 1}`)).toEqual([]);
  });

  it.each(['start=-1', 'start=1.5', 'start=soon', 'end=9999999999999', 'start=5&end=4', 'start=1&start=2', 'end='])(
    'are refused for %s',
    async (query) => {
      const { status, body } = await get(`/sandboxes/${ONE}/metrics?${query}`);
      expect(status).toBe(400);
      expect(body).toMatchObject({ code: 400, message: expect.stringMatching(/start|end/) });
    },
  );

  it('are empty while there are none, and unknown with their sandbox', async () => {
    expect(await get(`/sandboxes/${NEW}/metrics`)).toEqual({ status: 200, body: [] });
    expect(await get('/sandboxes/unknown/metrics')).toEqual({
      status: 404,
      body: { code: 404, message: "sandbox 'unknown' not found" },
    });
  });
});

describe('metrics of several sandboxes', () => {
  it('are the newest of each; unknown ones and those without any are left out', async () => {
    front.sandboxMetrics.attach(ONE, guestWithMetrics());
    front.sandboxMetrics.attach(TWO, guestWithMetrics({ cpuCount: 4 }));
    await clock.advance(40_000);
    const { status, body } = await get(`/sandboxes/metrics?sandbox_ids=${ONE},${TWO},${NEW},unknown,${ONE}`);
    expect(status).toBe(200);
    expect(Object.keys(body.sandboxes)).toEqual([ONE, TWO]);
    expect(body.sandboxes[TWO]).toMatchObject({ cpuCount: 4, timestampUnix: seconds() });
    const repeated = await get(`/sandboxes/metrics?sandbox_ids=${ONE}&sandbox_ids=${TWO}`);
    expect(repeated.body).toEqual(body);
  });

  it('need at least one and at most a hundred ids', async () => {
    for (const query of ['', '?sandbox_ids=', `?sandbox_ids=${'x,'.repeat(101)}`, `?sandbox_ids=${'x'.repeat(200)}`]) {
      const { status, body } = await get(`/sandboxes/metrics${query}`);
      expect(status).toBe(400);
      expect(body.message).toContain('sandbox_ids');
    }
    expect(await get(`/sandboxes/metrics?sandbox_ids=${'x,'.repeat(100)}`)).toEqual({
      status: 200,
      body: { sandboxes: {} },
    });
  });
});

describe('logs of a sandbox', () => {
  const write = async (message: string, level: SandboxLogEntry['level'] = 'info') => {
    front.sandboxLogs.append(ONE, { level, logger: 'process', message, fields: { pid: '42' } });
    await clock.advance(1_000);
  };
  let born: number;
  beforeEach(async () => {
    born = clock.now();
    front.sandboxLogs.open(ONE);
    for (const [message, level] of [
      ['one', 'debug'],
      ['two', 'info'],
      ['three', 'warn'],
      ['four', 'error'],
    ] as const) {
      await write(message, level);
    }
  });

  it('are JSON lines with level and logger, oldest first, in the form of the CLI (T18)', async () => {
    const { status, body } = await get(`/sandboxes/${ONE}/logs`);
    expect(status).toBe(200);
    expect(body.logs).toHaveLength(4);
    expect(body.logs[0].timestamp).toBe(new Date(born).toISOString());
    expect(JSON.parse(body.logs[0].line)).toEqual({ level: 'debug', logger: 'process', message: 'one', pid: '42' });
    expect(body.logEntries[3]).toEqual({
      timestamp: new Date(born + 3_000).toISOString(),
      level: 'error',
      message: 'four',
      fields: { pid: '42', logger: 'process' },
    });
  });

  it('go on from a time, as a client follows them: nothing is lost and nothing comes twice', async () => {
    const seen: string[] = [];
    let start = 0;
    const poll = async () => {
      const { body } = await get(`/sandboxes/${ONE}/logs?start=${start}`);
      for (const { timestamp, line } of body.logs as { timestamp: string; line: string }[]) {
        seen.push(JSON.parse(line).message);
        start = new Date(timestamp).getTime() + 1;
      }
    };
    await poll();
    // All in one millisecond, and a poll between them.
    front.sandboxLogs.append(ONE, { level: 'info', logger: 'sandbox', message: 'five', fields: {} });
    await poll();
    front.sandboxLogs.append(ONE, { level: 'info', logger: 'sandbox', message: 'six', fields: {} });
    front.sandboxLogs.append(ONE, { level: 'info', logger: 'sandbox', message: 'seven', fields: {} });
    await poll();
    expect(seen).toEqual(['one', 'two', 'three', 'four', 'five', 'six', 'seven']);
  });

  it('are read backward unless asked otherwise by v2, with cursor, limit, level and search', async () => {
    const messages = async (query: string) => {
      const { body } = await get(`/v2/sandboxes/${ONE}/logs${query}`);
      return (body.logs as { message: string }[]).map(({ message }) => message);
    };
    expect(await messages('')).toEqual(['four', 'three', 'two', 'one']);
    expect(await messages('?direction=forward')).toEqual(['one', 'two', 'three', 'four']);
    expect(await messages(`?cursor=${born + 2_000}`)).toEqual(['two', 'one']);
    expect(await messages(`?cursor=${born + 2_000}&direction=forward`)).toEqual(['three', 'four']);
    expect(await messages('?limit=2')).toEqual(['four', 'three']);
    expect(await messages('?limit=0')).toEqual([]);
    expect(await messages('?level=warn')).toEqual(['four', 'three']);
    expect(await messages('?search=o&direction=forward')).toEqual(['one', 'two', 'four']);
  });

  it.each([
    [`/sandboxes/${ONE}/logs?start=-1`, 'start'],
    [`/sandboxes/${ONE}/logs?limit=-1`, 'limit'],
    [`/v2/sandboxes/${ONE}/logs?limit=1001`, 'limit'],
    [`/v2/sandboxes/${ONE}/logs?level=fatal`, 'level'],
    [`/v2/sandboxes/${ONE}/logs?direction=up`, 'direction'],
    [`/v2/sandboxes/${ONE}/logs?cursor=now`, 'cursor'],
    [`/v2/sandboxes/${ONE}/logs?search=${'x'.repeat(257)}`, 'search'],
  ])('are refused for %s', async (url, field) => {
    const { status, body } = await get(url);
    expect(status).toBe(400);
    expect(body.message).toContain(field);
  });

  it('are unknown with their sandbox, and kept for a while after it', async () => {
    expect((await get('/sandboxes/unknown/logs')).status).toBe(404);
    expect(await get(`/v2/sandboxes/${TWO}/logs`)).toEqual({
      status: 404,
      body: { code: 404, message: `sandbox '${TWO}' not found` },
    });
    front.sandboxLogs.close(ONE);
    front.orchestrator.clear();
    expect((await get(`/sandboxes/${ONE}/logs`)).body.logs).toHaveLength(4);
    await clock.advance(60_000);
    expect((await get(`/sandboxes/${ONE}/logs`)).status).toBe(404);
  });
});

describe('nodes', () => {
  it('are this host, with what it is and uses', async () => {
    const { body } = await get('/nodes');
    expect(body).toEqual([
      {
        id: 'test-host',
        serviceInstanceID: TEST_NODE.serviceInstanceId,
        clusterID: TEST_NODE.clusterId,
        status: 'ready',
        sandboxCount: 5,
        sandboxStartingCount: 2,
        sandboxPausedCount: 1,
        createSuccesses: 20,
        createFails: 3,
        version: '1.2.3',
        commit: '',
        machineInfo: { cpuFamily: '25', cpuModel: '1', cpuModelName: 'Test CPU', cpuArchitecture: 'x86_64' },
        metrics: {
          allocatedCPU: 14,
          allocatedMemoryBytes: 7168 * 2 ** 20,
          cpuPercent: 12.5,
          cpuCount: 8,
          memoryUsedBytes: 1_000_000_000,
          memoryTotalBytes: 16_000_000_000,
          pausedAllocatedCPU: 2,
          pausedAllocatedMemoryBytes: 2 ** 30,
          disks: [{ mountPoint: '/', device: '/dev/sda1', filesystemType: 'ext4', usedBytes: 1, totalBytes: 2 }],
        },
      },
    ]);
    expect((await get('/nodes/test-host')).body).toEqual({ ...body[0], cachedBuilds: [] });
  });

  it('of another cluster, of another name, or with observability off are not there', async () => {
    expect((await get(`/nodes?clusterID=${TEST_NODE.clusterId}`)).body).toHaveLength(1);
    expect(await get('/nodes?clusterID=other')).toEqual({ status: 200, body: [] });
    expect((await get('/nodes/test-host?clusterID=other')).status).toBe(404);
    expect(await get('/nodes/other')).toEqual({ status: 404, body: { code: 404, message: "node 'other' not found" } });
    await using off = await createTestApp({ observability: 'off' });
    const headers = { 'x-api-key': TEST_API_KEY };
    expect((await off.app.inject({ url: '/nodes', headers })).json()).toEqual([]);
    expect((await off.app.inject({ url: '/nodes/test-host', headers })).statusCode).toBe(404);
  });
});
