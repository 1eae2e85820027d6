import { createHmac } from 'node:crypto';

/**
 * Token of the sandbox's envd, hex: HMAC-SHA256(seed, id). Derived, never stored: identical after a restart with the
 * same seed, different for every sandbox (contract agentenv.md section 14).
 */
export function deriveAccessToken(seed: string, sandboxId: string): string {
  return createHmac('sha256', seed).update(sandboxId).digest('hex');
}

/** Token for the ports of a sandbox with private ingress, hex; not interchangeable with the envd token. */
export function deriveTrafficAccessToken(seed: string, sandboxId: string): string {
  return createHmac('sha256', seed).update(`sandbox-traffic-${sandboxId}`).digest('hex');
}
