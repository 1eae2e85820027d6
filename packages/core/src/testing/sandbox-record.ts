import { createSandboxId, createUuidSource, type TemplateId } from '../ids.ts';
import { DEFAULT_NETWORK_POLICY } from '../network-policy.ts';
import type { SandboxRecord } from '../sandbox.ts';
import { createFakeClock } from './fake-clock.ts';
import { createSeededRandom } from './seeded-random.ts';

/** A complete, plausible record of a running sandbox; a fresh id every time unless given. */
export function sandboxRecord(changes: Partial<SandboxRecord> = {}): SandboxRecord {
  const rng = createSeededRandom(Math.floor(Math.random() * 0xffff_ffff));
  const startedAt = changes.startedAt ?? Date.UTC(2026, 0, 1);
  return {
    id: createSandboxId(rng),
    templateId: 'i0000000000000000base' as TemplateId,
    alias: 'base',
    state: 'running',
    instanceId: createUuidSource({ clock: createFakeClock(startedAt), rng }).instanceId(),
    createdAt: startedAt,
    startedAt,
    deadline: startedAt + 300_000,
    timeoutSeconds: 300,
    onTimeout: 'kill',
    autoResume: false,
    secure: true,
    resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
    network: DEFAULT_NETWORK_POLICY,
    metadata: {},
    envVars: {},
    defaultUser: 'user',
    defaultWorkdir: undefined,
    envdVersion: '0.6.13',
    backend: 'fake',
    channelKey: '00112233445566778899aabbccddeeff',
    runtime: undefined,
    ...changes,
  };
}
