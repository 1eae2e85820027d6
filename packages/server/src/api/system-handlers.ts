import { PlatformError } from '@agentenv/core';
import type { Handlers } from './operations.ts';

/** Handlers that say how the server itself is. `renderMetrics` gives the Prometheus text and its content type. */
export function createSystemHandlers(deps: {
  readonly isReady: () => boolean;
  readonly renderMetrics: () => Promise<{ readonly text: string; readonly contentType: string }>;
}): Pick<Handlers, 'getHealth' | 'getMetrics'> {
  return {
    getHealth: () => {
      if (!deps.isReady()) {
        throw new PlatformError('unavailable', 'the server is starting', { retryAfterSeconds: 1 });
      }
      return { status: 204 };
    },
    getMetrics: async () => {
      const { text, contentType } = await deps.renderMetrics();
      return { status: 200, body: text, headers: { 'content-type': contentType } };
    },
  };
}
