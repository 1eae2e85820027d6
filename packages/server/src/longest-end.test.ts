import { expect, test } from 'vitest';
import { CONFIG_SCHEMA } from './config/schema.ts';
import { longestEndMs } from './longest-end.ts';
import { DEFAULT_ORCHESTRATOR_CONFIG } from './orchestrator/config.ts';

test.each([0, CONFIG_SCHEMA.drain_timeout_secs.default, 20])(
  'the process waits longer than a drain of %i s and the pause of all sandboxes take together',
  (seconds) => {
    const own = longestEndMs({ drain_timeout_secs: seconds });
    const { shutdownTimeoutMs, releaseTimeoutMs } = DEFAULT_ORCHESTRATOR_CONFIG;
    // And one release at the end of it.
    expect(own).toBeGreaterThan(seconds * 1000 + shutdownTimeoutMs + releaseTimeoutMs);
  },
);
