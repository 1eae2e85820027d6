import { describe, expect, it } from 'vitest';
import { registerHostGauges } from './host-gauges.ts';
import { createMetrics } from './metrics.ts';

describe('metrics', () => {
  it('observe requests by route template and class of status', async () => {
    const metrics = createMetrics();
    metrics.http.observe('GET', '/sandboxes/{sandboxID}', 'control_plane', 404, 0.004, 'getSandbox');
    metrics.http.observe('POST', 'sandbox', 'proxy_header', 499, 1);
    const { text, contentType } = await metrics.render();
    expect(contentType).toContain('text/plain');
    const labels =
      'method="GET",route="/sandboxes/{sandboxID}",route_source="control_plane",status="4xx",operation="getSandbox"';
    expect(text).toContain(`agentenv_http_request_duration_seconds_count{${labels}} 1`);
    expect(text).toContain(`agentenv_http_request_duration_seconds_sum{${labels}} 0.004`);
    // A client that went away is no client that made a mistake.
    expect(text).toContain('route="sandbox",route_source="proxy_header",status="499"} 1');
  });

  it('count a stage as in flight until it ends, once', async () => {
    let seconds = 10;
    const metrics = createMetrics(() => seconds);
    const stage = metrics.stages.start('create_warm', 'restore');
    expect((await metrics.render()).text).toContain(
      'agentenv_sandbox_stage_inflight{operation="create_warm",stage="restore"} 1',
    );
    seconds = 12.5;
    stage.end('ok');
    stage.end('error');
    const { text } = await metrics.render();
    expect(text).toContain('agentenv_sandbox_stage_inflight{operation="create_warm",stage="restore"} 0');
    expect(text).toContain(
      'agentenv_sandbox_stage_duration_seconds_sum{operation="create_warm",stage="restore",status="ok"} 2.5',
    );
    expect(text).not.toContain('status="error"');
  });

  it('read the state of the host at every scrape', async () => {
    const metrics = createMetrics();
    let sandboxes: Record<string, number> = { running: 2, paused: 1 };
    using _ = registerHostGauges(metrics.registry, {
      sandboxes: () => sandboxes,
      pool: () => ({ ready: 1, target: 2, hits: 30, misses: 4 }),
      engines: () => ({ ready: 1, target: 2, hits: 30, misses: 4 }),
      slots: () => ({ ready: 5, inUse: 6 }),
    });
    const first = (await metrics.render()).text;
    for (const line of [
      'agentenv_sandboxes{state="running"} 2',
      'agentenv_sandboxes{state="paused"} 1',
      'agentenv_pool_entries{kind="ready"} 1',
      'agentenv_pool_entries{kind="target"} 2',
      'agentenv_pool_requests{result="hit"} 30',
      'agentenv_pool_requests{result="miss"} 4',
      'agentenv_network_slots{kind="ready"} 5',
      'agentenv_network_slots{kind="in_use"} 6',
    ]) {
      expect(first).toContain(line);
    }
    expect(first).toMatch(/agentenv_process_resident_memory_bytes \d{7,}/);
    expect(first).toMatch(/agentenv_event_loop_delay_seconds\{quantile="0.99"\} /);
    sandboxes = { running: 3 };
    const second = (await metrics.render()).text;
    expect(second).toContain('agentenv_sandboxes{state="running"} 3');
    expect(second).not.toContain('state="paused"');
  });

  it('belong to one server: two never share a registry', async () => {
    const [one, two] = [createMetrics(), createMetrics()];
    one.http.observe('GET', '/health', 'control_plane', 204, 1);
    expect((await two.render()).text).not.toContain('/health');
  });
});
