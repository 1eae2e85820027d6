import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Gauge, type Registry } from 'prom-client';

interface PoolSource {
  readonly ready: number;
  readonly target: number;
  readonly hits: number;
  readonly misses: number;
}

/** What is read at every scrape; none of it may be expensive. */
export interface HostSources {
  /** Number of sandboxes by internal state. */
  sandboxes(): Readonly<Record<string, number>>;
  pool(): PoolSource;
  engines(): PoolSource;
  slots(): { readonly ready: number; readonly inUse: number };
}

const NANOSECONDS = 1e9;

/** Registers the gauges of this host and watches the event loop until disposed. */
export function registerHostGauges(registry: Registry, sources: HostSources): Disposable {
  const gauge = (name: string, help: string, labelNames: readonly string[], collect: (gauge: Gauge) => void): void => {
    const created: Gauge = new Gauge({
      name,
      help,
      labelNames: [...labelNames],
      registers: [registry],
      collect: () => collect(created),
    });
  };

  gauge('agentenv_sandboxes', 'Sandboxes by state.', ['state'], (sandboxes) => {
    sandboxes.reset();
    for (const [state, count] of Object.entries(sources.sandboxes())) sandboxes.set({ state }, count);
  });
  const poolGauges = (name: string, entriesHelp: string, requestsHelp: string, read: () => PoolSource): void => {
    gauge(`${name}_entries`, entriesHelp, ['kind'], (entries) => {
      const { ready, target } = read();
      entries.set({ kind: 'ready' }, ready);
      entries.set({ kind: 'target' }, target);
    });
    gauge(`${name}_requests`, requestsHelp, ['result'], (requests) => {
      const { hits, misses } = read();
      requests.set({ result: 'hit' }, hits);
      requests.set({ result: 'miss' }, misses);
    });
  };
  poolGauges(
    'agentenv_pool',
    'Entries of the pool of restored guests.',
    'Launches since the start by whether the pool served them.',
    sources.pool,
  );
  poolGauges(
    'agentenv_engine_pool',
    'Entries of the pool of engines that wait for a capture.',
    'Launches since the start that the pool of guests did not serve, by whether the pool of engines served them.',
    sources.engines,
  );
  gauge('agentenv_network_slots', 'Network slots.', ['kind'], (slots) => {
    const { ready, inUse } = sources.slots();
    slots.set({ kind: 'ready' }, ready);
    slots.set({ kind: 'in_use' }, inUse);
  });
  gauge('agentenv_process_resident_memory_bytes', 'Resident memory of the server.', [], (memory) => {
    memory.set(process.memoryUsage.rss());
  });

  const delay = monitorEventLoopDelay({ resolution: 10 });
  delay.enable();
  gauge(
    'agentenv_event_loop_delay_seconds',
    'Delay of the event loop since the last scrape.',
    ['quantile'],
    (delays) => {
      delays.set({ quantile: '0.5' }, delay.percentile(50) / NANOSECONDS);
      delays.set({ quantile: '0.99' }, delay.percentile(99) / NANOSECONDS);
      delays.set({ quantile: '1' }, delay.max / NANOSECONDS);
      delay.reset();
    },
  );
  return { [Symbol.dispose]: () => delay.disable() };
}
