import type { Handlers } from './operations.ts';

/** Handlers that say how the server itself is. `renderMetrics` gives the Prometheus text and its content type. */
export function createSystemHandlers(deps: {
  readonly renderMetrics: () => Promise<{ readonly text: string; readonly contentType: string }>;
}): Pick<Handlers, 'getHealth' | 'getMetrics'> {
  return {
    getHealth: () => ({ status: 204 }),
    getMetrics: async () => {
      const { text, contentType } = await deps.renderMetrics();
      return { status: 200, body: text, headers: { 'content-type': contentType } };
    },
  };
}
