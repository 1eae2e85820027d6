import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type NativeGuest, startNativeGuest, testClock } from '@agentenv/agent/testing';
import { SILENT_LOG } from '@agentenv/core';
import { Process } from '@agentenv/protocol/process';
import { Code, createClient } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createEnvd } from '../service.ts';

/** Stands for a message without an event. */
const NOTHING = { case: undefined, value: undefined };

let guest: NativeGuest;

beforeAll(async () => {
  guest = await startNativeGuest();
});
afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

/** A service on a fresh connection to the guest, as a server process that was just started has it, and a client of it. */
async function serve(useBinaryFormat: boolean) {
  await guest.reconnect();
  await using stack = new AsyncDisposableStack();
  const service = stack.use(
    createEnvd({
      agent: guest.agent,
      clock: testClock,
      log: SILENT_LOG,
      journal() {},
      sandboxId: 'itest',
      templateId: 'base',
      accessToken: undefined,
      defaultUser: 'user',
      defaultWorkdir: undefined,
      envVars: {},
    }),
  );
  const server = createServer((request, response) => service.handle(request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  stack.defer(async () => {
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  });
  const { port } = server.address() as AddressInfo;
  const transport = createConnectTransport({
    baseUrl: `http://127.0.0.1:${port}`,
    httpVersion: '1.1',
    useBinaryFormat,
  });
  const disposal = stack.move();
  return {
    client: createClient(Process, transport),
    [Symbol.asyncDispose]: () => disposal.disposeAsync(),
  };
}

describe.each([
  ['JSON', false],
  ['binary', true],
])('the published protocol library in %s', (_codec, useBinaryFormat) => {
  test('starts, feeds, lists, signals and ends processes', async () => {
    await using server = await serve(useBinaryFormat);
    const { client } = server;
    const config = { cmd: '/bin/cat', args: [], envs: { A: '1' }, cwd: '/tmp' };
    let output = '';
    let pid = 0;
    for await (const { event } of client.start({ process: config, tag: 'cat' })) {
      const { case: kind, value } = event?.event ?? NOTHING;
      if (kind === 'start') {
        ({ pid } = value);
        expect((await client.list({})).processes).toMatchObject([{ pid, tag: 'cat', config }]);
        await client.sendInput({
          process: { selector: { case: 'tag', value: 'cat' } },
          input: { input: { case: 'stdin', value: Buffer.from('hello') } },
        });
        await client.closeStdin({ process: { selector: { case: 'pid', value: pid } } });
      } else if (kind === 'data' && value.output.case === 'stdout') {
        output += Buffer.from(value.output.value).toString();
      } else if (kind === 'end') {
        expect(value).toMatchObject({ exitCode: 0, exited: true, status: 'exit status 0' });
        expect(value.error).toBeUndefined();
      }
    }
    expect(output).toBe('hello');
    await expect(
      client.sendSignal({ process: { selector: { case: 'pid', value: pid } }, signal: 9 }),
    ).rejects.toMatchObject({ code: Code.NotFound });
  });

  test('bulk output is complete', async () => {
    await using server = await serve(useBinaryFormat);
    let bytes = 0;
    for await (const { event } of server.client.start({
      process: { cmd: 'head', args: ['-c', '5000000', '/dev/zero'] },
    })) {
      if (event?.event.case === 'data') bytes += event.event.value.output.value?.length ?? 0;
    }
    expect(bytes).toBe(5_000_000);
  });
});

describe('a restarted server', () => {
  test('lists the processes of the former one as they were started and attaches to them', async () => {
    const config = { cmd: '/bin/sh', args: ['-c', 'while read line; do echo "got $line"; done'], envs: { A: 'b' } };
    let pid = 0;
    {
      await using server = await serve(false);
      for await (const { event } of server.client.start({ process: config, tag: 'survivor' })) {
        if (event?.event.case === 'start') ({ pid } = event.event.value);
        break;
      }
    }
    await using server = await serve(false);
    expect((await server.client.list({})).processes).toMatchObject([{ pid, tag: 'survivor', config }]);
    const seen: string[] = [];
    for await (const { event } of server.client.connect({
      process: { selector: { case: 'tag', value: 'survivor' } },
    })) {
      const { case: kind, value } = event?.event ?? NOTHING;
      if (kind === 'start') {
        expect(value.pid).toBe(pid);
        const process = { selector: { case: 'pid' as const, value: pid } };
        await server.client.sendInput({ process, input: { input: { case: 'stdin', value: Buffer.from('input\n') } } });
        await server.client.closeStdin({ process });
      } else if (kind === 'data' && value.output.case === 'stdout') {
        seen.push(Buffer.from(value.output.value).toString());
      } else if (kind === 'end') {
        seen.push(value.status);
      }
    }
    expect(seen.join('|')).toBe('got input\n|exit status 0');
  });

  test('still knows a process that ended while nobody was connected', async () => {
    let pid = 0;
    {
      await using server = await serve(false);
      for await (const { event } of server.client.start({
        process: { cmd: '/bin/sh', args: ['-c', 'read x; exit 4'] },
      })) {
        if (event?.event.case === 'start') ({ pid } = event.event.value);
        break;
      }
      await server.client.closeStdin({ process: { selector: { case: 'pid', value: pid } } });
    }
    await using server = await serve(false);
    const kinds: (string | number | undefined)[] = [];
    for await (const { event } of server.client.connect({ process: { selector: { case: 'pid', value: pid } } })) {
      kinds.push(event?.event.case === 'end' ? event.event.value.exitCode : event?.event.case);
    }
    expect(kinds).toEqual(['start', 4]);
    expect((await server.client.list({})).processes).toEqual([]);
  });
});
