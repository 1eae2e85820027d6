import type { RequestListener } from 'node:http';
import { type Duplex, duplexPair } from 'node:stream';
import type { Agent } from '@agentenv/agent';
import { PlatformError, SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test, vi } from 'vitest';
import { serveInside } from './inside.ts';

const GET = 'GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n';

/** The service with a listener whose connections come from the test. */
function serve(handle: RequestListener = (_request, response) => response.end('ok')) {
  const clock = createFakeClock();
  let accept: ((connection: Duplex) => void) | undefined;
  let listening = true;
  const agent: Pick<Agent, 'listenPort'> = {
    async listenPort(port, onConnection) {
      expect(port).toBe(49983);
      accept = onConnection;
      return {
        async [Symbol.asyncDispose]() {
          listening = false;
        },
      };
    },
  };
  const inside = serveInside({ agent, clock, log: SILENT_LOG, handle });
  return {
    inside,
    clock,
    isListening: () => listening,
    /** The client's end of a connection, and a promise of the end of the service's. */
    connect(): { readonly client: Duplex; readonly closed: Promise<void> } {
      const [client, served] = duplexPair();
      const closed = new Promise<void>((resolve) => served.once('close', () => resolve()));
      accept?.(served);
      return { client, closed };
    },
  };
}

async function untilText(connection: Duplex, text: string): Promise<string> {
  let seen = '';
  for await (const chunk of connection.iterator({ destroyOnReturn: false })) {
    seen += chunk;
    if (seen.includes(text)) break;
  }
  return seen;
}

describe('connections from inside', () => {
  test('are answered, several requests on one, and leave no timer when they close', async () => {
    const { inside, connect, clock } = serve();
    const { client, closed } = connect();
    for (let request = 0; request < 3; request++) {
      client.write(GET);
      expect(await untilText(client, '\r\n\r\nok')).toMatch(/^HTTP\/1\.1 200 /);
    }
    expect(clock.pendingTimers).toBe(1);
    client.end().resume();
    await closed;
    expect(clock.pendingTimers).toBe(0);
    await inside[Symbol.asyncDispose]();
  });

  test('are closed after a long silence before a request, not during one', async () => {
    const pending = Promise.withResolvers<() => void>();
    const { inside, connect, clock } = serve((_request, response) => pending.resolve(() => response.end('late')));
    const silent = connect();
    const busy = connect();
    busy.client.write(GET);
    const answer = await pending.promise;
    await clock.advance(640_000);
    await silent.closed;
    await clock.advance(640_000);
    answer();
    expect(await untilText(busy.client, 'late')).toContain('late');
    await inside[Symbol.asyncDispose]();
  });

  test('are limited, and what is no HTTP is a 400', async () => {
    const { inside, connect } = serve();
    const first = connect();
    for (let count = 1; count < 256; count++) connect();
    await connect().closed;
    first.client.write('nonsense\r\n\r\n');
    expect(await untilText(first.client, '\r\n\r\n')).toMatch(/^HTTP\/1\.1 400 /);
    first.client.end();
    await first.closed;
    const next = connect();
    next.client.write(GET);
    expect(await untilText(next.client, 'ok')).toMatch(/^HTTP\/1\.1 200 /);
    await inside[Symbol.asyncDispose]();
  });

  test('end with the service, and so does the listener', async () => {
    const { inside, connect, isListening } = serve(() => {});
    const { client, closed } = connect();
    client.write(GET);
    await inside[Symbol.asyncDispose]();
    await closed;
    expect(isListening()).toBe(false);
    await connect().closed;
  });
});

test('a port that is taken inside is logged and nothing else; a sandbox that is gone is no news', async () => {
  for (const [code, expected] of [
    ['conflict', 1],
    ['sandbox_unavailable', 0],
  ] as const) {
    const warn = vi.fn();
    const agent: Pick<Agent, 'listenPort'> = {
      async listenPort() {
        throw new PlatformError(code, 'no');
      },
    };
    const log = { ...SILENT_LOG, warn };
    const inside = serveInside({ agent, clock: createFakeClock(), log, handle: () => {} });
    await inside[Symbol.asyncDispose]();
    expect(warn).toHaveBeenCalledTimes(expected);
  }
});
