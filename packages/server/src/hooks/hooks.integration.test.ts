import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import { createFakeBackend, createFakeWorld, createFileArtifacts } from '@agentenv/runtime';
import { expect, test } from 'vitest';
import { describeHookCaptures } from '../testing/hook-captures-suite.ts';
import { describeHookOperations } from '../testing/hook-operations-suite.ts';
import type { HookHost } from '../testing/hook-world.ts';
import { describeHooks } from '../testing/hooks-suite.ts';
import { startRecordingExtension } from '../testing/recording-extension.ts';
import { startServerProcess } from '../testing/server-process.ts';

async function openHost(): Promise<HookHost> {
  const root = mkdtempSync(join(tmpdir(), 'aenv-hooks-fake-'));
  const world = createFakeWorld({ clock: createRealClock(), artifacts: createFileArtifacts() });
  return {
    open: () => createFakeBackend({ world, templates: join(root, 'templates') }),
    rootfs: { path: '/fake/base', digest: 'fake' },
    resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
    slotsInUse: () => world.slots.inUse,
    async [Symbol.asyncDispose]() {
      rmSync(root, { recursive: true, force: true });
    },
  };
}

describeHooks('fake', openHost, [describeHookOperations, describeHookCaptures]);

test('a server asks the extension its environment names', async () => {
  await using ext = await startRecordingExtension();
  const key = `e2b_${'ab'.repeat(20)}`;
  await using server = await startServerProcess({
    environment: { AENV_API_KEY: key, AENV_CUSTOM_EXTENSION_URL: `${ext.url}/` },
  });
  const url = await server.ready();
  expect(ext.calls).toEqual([]);
  const headers = { 'x-api-key': key, 'content-type': 'application/json' };
  const body = JSON.stringify({ templateID: 'base', metadata: { team: 'alpha' } });
  const create = () => fetch(`${url}/sandboxes`, { method: 'POST', headers, body });
  expect((await create()).status).toBe(201);
  ext.answer('start-resume', { status: 422, body: 'no' });
  const rejected = await create();
  expect(rejected.status).toBe(400);
  expect(await rejected.json()).toMatchObject({ message: 'the custom extension rejected start-resume with 422: no' });
  await server.end('SIGTERM');
  expect(ext.of('stop')).toHaveLength(2);
});
