import { EventType, Filesystem, FileType } from '@agentenv/protocol/filesystem';
import { Process, type StartResponse } from '@agentenv/protocol/process';
import { type Client, Code, createClient, type Interceptor } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type EnvdFixture, startEnvd } from './testing/envd-fixture.ts';
import { TOKEN } from './testing/http-client.ts';

let envd: EnvdFixture;
beforeAll(async () => {
  envd = await startEnvd();
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

const withToken: Interceptor = (next) => (request) => {
  request.header.set('x-access-token', TOKEN);
  return next(request);
};

async function outputOf(
  stream: AsyncIterable<StartResponse>,
): Promise<{ stdout: string; exitCode: number | undefined }> {
  const decoder = new TextDecoder();
  let stdout = '';
  let exitCode: number | undefined;
  for await (const { event } of stream) {
    if (event?.event.case === 'data' && event.event.value.output.case === 'stdout') {
      stdout += decoder.decode(event.event.value.output.value, { stream: true });
    }
    if (event?.event.case === 'end') exitCode = event.event.value.exitCode;
  }
  return { stdout, exitCode };
}

/** The protocol library's own client, in both codecs and with compressed requests. */
describe.each([
  { codec: 'JSON', useBinaryFormat: false, compressMinBytes: 1024 },
  { codec: 'binary', useBinaryFormat: true, compressMinBytes: 1024 },
  { codec: 'binary, everything compressed', useBinaryFormat: true, compressMinBytes: 0 },
])('$codec', ({ useBinaryFormat, compressMinBytes }) => {
  let processes: Client<typeof Process>;
  let filesystem: Client<typeof Filesystem>;
  beforeEach(() => {
    const transport = createConnectTransport({
      ...{ baseUrl: envd.url, httpVersion: '1.1', useBinaryFormat, compressMinBytes },
      interceptors: [withToken],
    });
    processes = createClient(Process, transport);
    filesystem = createClient(Filesystem, transport);
  });

  test('a process: output, exit code, input, list, signal', async () => {
    const text = 'ü'.repeat(200_000);
    const script = `echo start; cat; echo ${'y'.repeat(5000)}; exit 3`;
    const started = processes.start({ process: { cmd: 'sh', args: ['-c', script] }, tag: 'codec' });
    const output = outputOf(started);
    const selector = { selector: { case: 'tag', value: 'codec' } } as const;
    await expect.poll(async () => (await processes.list({})).processes.map(({ tag }) => tag)).toContain('codec');
    await processes.sendInput({ process: selector, input: { input: { case: 'stdin', value: Buffer.from(text) } } });
    await processes.closeStdin({ process: selector });
    expect(await output).toEqual({ stdout: `start\n${text}${'y'.repeat(5000)}\n`, exitCode: 3 });
    await expect(processes.sendSignal({ process: selector, signal: 9 })).rejects.toMatchObject({ code: Code.NotFound });
  });

  test('errors: of a call and of a stream', async () => {
    await expect(filesystem.stat({ path: '/no/such' })).rejects.toMatchObject({
      code: Code.NotFound,
      rawMessage: 'file not found: /no/such',
    });
    const stream = processes.start({ process: { cmd: 'true', cwd: '/no/such' } });
    await expect(outputOf(stream)).rejects.toMatchObject({ code: Code.InvalidArgument });
  });

  test('files: made, found, listed, moved, watched, removed', async () => {
    const root = '/tmp/codec';
    expect((await filesystem.makeDir({ path: `${root}/sub` })).entry).toMatchObject({ type: FileType.DIRECTORY });
    const watch = filesystem.watchDir({ path: root, recursive: true, includeEntry: true });
    const events = watch[Symbol.asyncIterator]();
    expect((await events.next()).value?.event.case).toBe('start');
    await filesystem.move({ source: `${root}/sub`, destination: `${root}/moved` });
    const seen: string[] = [];
    while (!seen.includes('CREATE moved')) {
      const { value } = await events.next();
      if (value?.event.case !== 'filesystem') continue;
      seen.push(`${EventType[value.event.value.type]} ${value.event.value.name}`);
    }
    expect(seen[0]).toBe('RENAME sub');
    const listed = await filesystem.listDir({ path: root, depth: 2 });
    expect(listed.entries.map(({ path, type, mode, owner }) => [path, type, mode, owner])).toEqual([
      [`${root}/moved`, FileType.DIRECTORY, 0o755, 'user'],
    ]);
    await filesystem.remove({ path: root });
    await expect(filesystem.listDir({ path: root })).rejects.toMatchObject({ code: Code.NotFound });
  });
});
