import type { Agent } from '../agent.ts';
import { type ClientContext, milliseconds, nanoseconds } from './context.ts';
import { DEADLINES } from './deadlines.ts';

/** Creates what asks about the guest as a whole: round trip, clock, metrics. */
export function createSystem({
  calls,
  clock,
}: ClientContext): Pick<Agent, 'ping' | 'setClock' | 'clockSkew' | 'metrics'> {
  return {
    async ping(signal) {
      return await calls.call('ping', {}, { deadlineMs: DEADLINES.ping, signal });
    },

    async setClock(signal) {
      const body = { wallNs: nanoseconds(clock.now()) };
      const { skewNs } = await calls.call('setClock', body, { deadlineMs: DEADLINES.setClock, signal });
      return milliseconds(skewNs);
    },

    async clockSkew(signal) {
      const before = clock.now();
      const started = clock.monotonic();
      const { skewNs: guestNs } = await calls.call(
        'setClock',
        { wallNs: 0n },
        { deadlineMs: DEADLINES.setClock, signal },
      );
      // The guest read its clock somewhere on the way; the middle is the best guess.
      const host = before + (clock.monotonic() - started) / 2;
      return milliseconds(guestNs - nanoseconds(host));
    },

    async metrics(signal) {
      const row = await calls.call('metrics', {}, { deadlineMs: DEADLINES.metrics, signal });
      return {
        cpuCount: row.cpuCount,
        cpuUsedPct: row.cpuUsedPct / 100,
        memTotal: Number(row.memTotal),
        memUsed: Number(row.memUsed),
        memCache: Number(row.memCache),
        diskTotal: Number(row.diskTotal),
        diskUsed: Number(row.diskUsed),
        agentRss: Number(row.agentRss),
      };
    },
  };
}
