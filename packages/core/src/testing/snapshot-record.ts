import type { BuildId, SandboxId, TemplateId } from '../ids.ts';
import type { SnapshotRecord } from '../snapshot.ts';

/** A complete, plausible record of a snapshot, the same every time but for `changes`. */
export function snapshotRecord(changes: Partial<SnapshotRecord> = {}): SnapshotRecord {
  return {
    buildId: '019b76da-a800-7000-8000-0000000000bb' as BuildId,
    templateId: 'i0000000000000000snap' as TemplateId,
    name: 'data',
    tags: ['default'],
    createdAt: Date.UTC(2026, 0, 1),
    sandboxId: 'i00000000000000000001' as SandboxId,
    origin: { templateId: 'i0000000000000000base' as TemplateId, buildId: undefined },
    backend: 'fake',
    manifestDigest: 'cd'.repeat(32),
    resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
    envdVersion: '0.6.13',
    context: { envVars: {}, defaultUser: 'user', defaultWorkdir: undefined, customExtensionParams: {} },
    spawnCount: 0,
    lastSpawnedAt: undefined,
    ...changes,
  };
}
