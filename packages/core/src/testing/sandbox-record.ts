import type { BuildId, InstanceId, SandboxId, TemplateId } from '../ids.ts';
import { DEFAULT_NETWORK_POLICY } from '../network-policy.ts';
import type { SandboxRecord } from '../sandbox.ts';

/** A complete, plausible record of a running sandbox, the same every time but for `changes`. */
export function sandboxRecord(changes: Partial<SandboxRecord> = {}): SandboxRecord {
  const startedAt = changes.startedAt ?? Date.UTC(2026, 0, 1);
  return {
    id: 'i00000000000000000001' as SandboxId,
    templateId: 'i0000000000000000base' as TemplateId,
    buildId: '019b76da-a800-7000-8000-00000000000b' as BuildId,
    alias: 'base',
    state: 'running',
    instanceId: '019b76da-a800-7000-8000-000000000001' as InstanceId,
    createdAt: startedAt,
    startedAt,
    deadline: startedAt + 300_000,
    timeoutSeconds: 300,
    onTimeout: 'kill',
    timeoutKeeps: 'full',
    autoResume: false,
    secure: true,
    resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
    network: DEFAULT_NETWORK_POLICY,
    metadata: {},
    customExtensionParams: {},
    envVars: {},
    defaultUser: 'user',
    defaultWorkdir: undefined,
    envdVersion: '0.6.13',
    backend: 'fake',
    channelKey: '00112233445566778899aabbccddeeff',
    capture: undefined,
    captureKind: 'full',
    runtime: undefined,
    ...changes,
  };
}
