import {
  type PagePosition,
  PlatformError,
  parseTemplateReference,
  type SnapshotRecord,
  shorten,
  snapshotId,
  snapshotNames,
  TEMPLATE_NAME_MAX,
} from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { SnapshotRepository } from '@agentenv/storage';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import type { Handlers } from './operations.ts';
import { nextPageHeader, paginate } from './pages.ts';

type SnapshotInfo = components['schemas']['SnapshotInfo'];

type SnapshotHandlers = Pick<Handlers, 'createSnapshot' | 'listSnapshots' | 'getSnapshot'>;

/** What the snapshot routes read. */
export type SnapshotReader = Pick<SnapshotRepository, 'namespace' | 'list' | 'locate'>;

export interface SnapshotHandlerDependencies {
  readonly orchestrator: Pick<Orchestrator, 'snapshot'>;
  readonly snapshots: SnapshotReader;
}

/** Handlers of the snapshot routes; a snapshot is deleted as a template. */
export function createSnapshotHandlers({ orchestrator, snapshots }: SnapshotHandlerDependencies): SnapshotHandlers {
  const toInfo = (snapshot: SnapshotRecord): SnapshotInfo => ({
    snapshotID: snapshotId(snapshot, snapshots.namespace),
    names: snapshotNames(snapshot, snapshots.namespace),
    cpuCount: snapshot.resources.vcpus,
    memoryMB: snapshot.resources.memoryMB,
    diskSizeMB: snapshot.resources.diskSizeMB,
    createdAt: new Date(snapshot.createdAt).toISOString(),
    updatedAt: new Date(snapshot.createdAt).toISOString(),
  });

  return {
    createSnapshot: async ({ path, body }) => ({
      status: 201,
      body: toInfo(await orchestrator.snapshot(path.sandboxID, body.name ?? undefined)),
    }),

    listSnapshots: ({ query }) => {
      const name = query.name === undefined ? undefined : parseTemplateReference(query.name, 'name').alias;
      const { items, nextToken } = paginate(snapshots.list({ sandboxId: query.sandboxID, name }), position, {
        limit: query.limit ?? 100,
        nextToken: query.nextToken,
      });
      return { status: 200, body: items.map(toInfo), headers: nextPageHeader(nextToken) };
    },

    getSnapshot: ({ path }) => {
      const found = snapshots.locate(parseTemplateReference(path.snapshotID, 'snapshot id'))?.build;
      if (found !== undefined) return { status: 200, body: toInfo(found) };
      throw new PlatformError('not_found', `snapshot '${shorten(path.snapshotID, TEMPLATE_NAME_MAX)}' not found`);
    },
  };
}

function position({ createdAt, buildId }: SnapshotRecord): PagePosition {
  return { startedAt: createdAt, id: buildId };
}
