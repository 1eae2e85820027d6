import type { Agent, GuestMetrics } from '@agentenv/agent';

/** The metrics of a guest of a test; sizes are larger than 32 bits can hold. */
export const GUEST_METRICS: GuestMetrics = {
  cpuCount: 2,
  cpuUsedPct: 12.34,
  memTotal: 1_073_741_824,
  memUsed: 104_857_600,
  memCache: 52_428_800,
  diskTotal: 10_737_418_240,
  diskUsed: 5_368_709_120,
  agentRss: 131_072,
};

/** A guest that always answers the same. */
export function guestWithMetrics(metrics: Partial<GuestMetrics> = {}): Pick<Agent, 'metrics'> {
  return { metrics: async () => ({ ...GUEST_METRICS, ...metrics }) };
}
