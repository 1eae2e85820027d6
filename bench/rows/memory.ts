import { setTimeout as delay } from 'node:timers/promises';
import { Sandbox } from 'e2b';
import {
  childrenOf,
  cpuSeconds,
  enginePid,
  privateBytes,
  proportionalBytes,
  residentBytes,
} from '../../e2e/lib/host.ts';
import type { Bench } from '../lib/row.ts';
import { benchServer, NO_POOL } from '../lib/session.ts';

const MIB = 2 ** 20;
const SETTLE_MS = 2_000;

/** Proportional set size of eight clones, before and after one command. */
export const memoryPerClone: Bench = {
  name: 'memory',
  what: 'PSS of each of 8 clones, untouched and after one command through the SDK',
  async run() {
    await using server = await benchServer(NO_POOL);
    const clones: Sandbox[] = [];
    for (let index = 0; index < 8; index++) {
      clones.push(await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000 }));
    }
    const sizes = () => clones.map(({ sandboxId }) => proportionalBytes(enginePid(server, sandboxId)) / MIB);
    await delay(SETTLE_MS);
    const untouched = sizes();
    for (const clone of clones) await clone.commands.run('echo touched');
    await delay(SETTLE_MS);
    const touched = sizes();
    await Promise.all(clones.map((clone) => clone.kill()));
    return [
      {
        name: 'memory per clone, untouched',
        unit: 'MiB PSS',
        samples: untouched,
        floor: undefined,
        budget: '≤ 32 MiB',
        ok: ({ p50 }) => p50 <= 32,
      },
      {
        name: 'memory per clone, after one command',
        unit: 'MiB PSS',
        samples: touched,
        floor: undefined,
        budget: '≤ 60 MiB',
        ok: ({ p50 }) => p50 <= 60,
      },
    ];
  },
};

/** A hundred sandboxes that do nothing: CPU, memory of each, memory of the server. */
export const idle: Bench = {
  name: 'idle',
  what: '100 idle sandboxes: cores in use, PSS of each, RSS of the server with what its helpers add',
  async run({ progress, effort }) {
    const count = Math.max(10, Math.round(100 * Math.min(1, effort)));
    await using server = await benchServer(`${NO_POOL}\norchestrator.memory_commit_ratio = 0.05`);
    const sandboxes: Sandbox[] = [];
    for (let index = 0; index < count; index++) {
      sandboxes.push(await Sandbox.create('base', { ...server.sdk, timeoutMs: 3_600_000 }));
      if ((index + 1) % 20 === 0) progress(`${index + 1} sandboxes`);
    }
    const pids = sandboxes.map(({ sandboxId }) => enginePid(server, sandboxId));
    await delay(10_000);
    const used = () => [...pids, server.pid].map(cpuSeconds).reduce((sum, seconds) => sum + seconds, 0);
    const before = used();
    const start = performance.now();
    await delay(30_000);
    const cores = (used() - before) / ((performance.now() - start) / 1000);
    const memory = pids.map((pid) => proportionalBytes(pid) / MIB);
    const helpers = childrenOf(server.pid).reduce((sum, pid) => sum + privateBytes(pid), 0) / MIB;
    const serverMemory = residentBytes(server.pid) / MIB + helpers;
    await server.stop();
    const absolute = (name: string, unit: string, samples: readonly number[], limit: number) => ({
      name: `${count} idle sandboxes: ${name}`,
      unit,
      samples,
      floor: undefined,
      budget: `≤ ${limit} ${unit}`,
      ok: ({ p50 }: { readonly p50: number }) => p50 <= limit,
    });
    return [
      absolute('CPU', 'cores', [(cores * 100) / count], 1.2),
      absolute('memory of each', 'MiB PSS', memory, 60),
      absolute('memory of the server and its helpers', 'MiB', [serverMemory], 200),
    ];
  },
};
