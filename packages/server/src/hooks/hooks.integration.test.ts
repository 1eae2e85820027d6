import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import { createFakeBackend, createFakeWorld, createFileArtifacts } from '@agentenv/runtime';
import { describeHookOperations } from '../testing/hook-operations-suite.ts';
import type { HookHost } from '../testing/hook-world.ts';
import { describeHooks } from '../testing/hooks-suite.ts';

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

describeHooks('fake', openHost, [describeHookOperations]);
