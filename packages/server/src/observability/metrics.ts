import { ERROR_CATALOGUE } from '@agentenv/protocol';
import { Gauge, Histogram, Registry } from 'prom-client';

/** How a request found its way (agentenv.md section 18). */
export type RouteSource = 'control_plane' | 'proxy_host' | 'proxy_header' | 'proxy_prefix';

export interface HttpMetrics {
  /**
   * `route` is a template of the document or a constant, never a path a client chose; `seconds` to the last byte;
   * `operation`: its id in the document, if it has one.
   */
  observe(
    method: string,
    route: string,
    source: RouteSource,
    status: number,
    seconds: number,
    operation?: string,
  ): void;
}

export type StageStatus = 'ok' | 'error' | 'canceled';

export interface StageMetrics {
  /** Counts a stage of an operation as in flight until `end`, then observes how long it took. `end` counts once. */
  start(operation: string, stage: string): { end(status: StageStatus): void };
}

/** The metrics of one server; every instance has its own registry. */
export interface Metrics {
  readonly registry: Registry;
  readonly http: HttpMetrics;
  readonly stages: StageMetrics;
  /** The Prometheus text of all of them. */
  render(): Promise<{ readonly text: string; readonly contentType: string }>;
}

const CLIENT_GONE = ERROR_CATALOGUE.canceled.http;

/** The class of a status; clients that went away are told apart from those that made a mistake. */
function statusClass(status: number): string {
  return status === CLIENT_GONE ? String(status) : `${Math.trunc(status / 100)}xx`;
}

export function createMetrics(monotonicSeconds: () => number = () => performance.now() / 1000): Metrics {
  const registry = new Registry();
  const http = new Histogram({
    name: 'agentenv_http_request_duration_seconds',
    help: 'Time from the head of a request to the last byte of its answer.',
    labelNames: ['method', 'route', 'route_source', 'status', 'operation'],
    buckets: [0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60],
    registers: [registry],
  });
  const stageDuration = new Histogram({
    name: 'agentenv_sandbox_stage_duration_seconds',
    help: 'Time one stage of a sandbox operation took.',
    labelNames: ['operation', 'stage', 'status'],
    buckets: [0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1, 2, 5, 15, 60],
    registers: [registry],
  });
  const stageInflight = new Gauge({
    name: 'agentenv_sandbox_stage_inflight',
    help: 'Stages of sandbox operations that are running.',
    labelNames: ['operation', 'stage'],
    registers: [registry],
  });

  return {
    registry,
    http: {
      observe(method, route, source, status, seconds, operation) {
        const labels = { method, route, route_source: source, status: statusClass(status) };
        http.observe(operation === undefined ? labels : { ...labels, operation }, seconds);
      },
    },
    stages: {
      start(operation, stage) {
        const from = monotonicSeconds();
        let ended = false;
        stageInflight.inc({ operation, stage });
        return {
          end(status) {
            if (ended) return;
            ended = true;
            stageInflight.dec({ operation, stage });
            stageDuration.observe({ operation, stage, status }, monotonicSeconds() - from);
          },
        };
      },
    },
    render: async () => ({ text: await registry.metrics(), contentType: registry.contentType }),
  };
}
