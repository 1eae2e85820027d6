import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ExampleExtension, startExampleExtension } from './example-extension.ts';
import { startServer, type TestServer } from './lib/server.ts';

describe('a server with the example extension', () => {
  const lines: string[] = [];
  let extension: ExampleExtension;
  let server: TestServer;

  beforeAll(async () => {
    extension = await startExampleExtension(0, (line) => lines.push(line));
    server = await startServer({ config: `custom_extension.url = "${extension.url}"` });
  });
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await extension?.[Symbol.asyncDispose]();
  });

  const hooks = () => lines.map((line) => line.split(' ', 1)[0]);

  test('is told of a sandbox of the SDK from start to end, over a pause', async () => {
    expect(lines).toEqual([]);
    const sandbox = await Sandbox.create('base', { ...server.sdk, metadata: { team: 'alpha' }, timeoutMs: 120_000 });
    const params = `/sandboxes/${sandbox.sandboxId}/custom-extension-params`;
    const headers = { 'content-type': 'application/json' };
    const patched = await server.api(params, { method: 'PATCH', headers, body: '{"vpn":"on"}' });
    expect(await patched.json()).toEqual({ vpn: 'on' });
    await sandbox.betaPause();
    const resumed = await Sandbox.connect(sandbox.sandboxId, { ...server.sdk, timeoutMs: 120_000 });
    expect((await resumed.commands.run('echo on')).stdout).toBe('on\n');
    expect(await (await server.api(params)).json()).toEqual({ vpn: 'on' });
    await resumed.kill();
    expect(hooks()).toEqual(['start-resume', 'patch-params', 'stop', 'start-resume', 'stop']);
    expect(lines[3]).toContain('"customExtensionParams":{"vpn":"on"},"metadata":{"team":"alpha"}');
    expect(extension.used.get(sandbox.sandboxId)).toBeGreaterThan(0);
  });

  test('a refusal reaches whoever uses the SDK, with its reason', async () => {
    const refused = Sandbox.create('base', { ...server.sdk, metadata: { blocked: 'yes' } });
    await expect(refused).rejects.toThrow(/403.*blocked by its metadata/);
    expect(await Sandbox.list(server.sdk).nextItems()).toEqual([]);
  });
});
