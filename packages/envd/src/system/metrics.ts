import type { GuestMetrics } from '@agentenv/agent';

const MIB = 1024 * 1024;

/** The body of `GET /metrics`: sizes in bytes, `ts` in Unix seconds (contract e2b.md section 8). */
export function metricsBody(metrics: GuestMetrics, nowMs: number): Readonly<Record<string, number>> {
  return {
    ts: Math.floor(nowMs / 1000),
    cpu_count: metrics.cpuCount,
    cpu_used_pct: metrics.cpuUsedPct,
    mem_total: metrics.memTotal,
    mem_used: metrics.memUsed,
    mem_cache: metrics.memCache,
    disk_total: metrics.diskTotal,
    disk_used: metrics.diskUsed,
    mem_total_mib: Math.round(metrics.memTotal / MIB),
    mem_used_mib: Math.round(metrics.memUsed / MIB),
  };
}
