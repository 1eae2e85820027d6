import { type Log, PlatformError, type SnapshotName, type SnapshotRecord } from '@agentenv/core';
import type { SnapshotDraft, SnapshotRepository } from '@agentenv/storage';
import type { TemplateCatalogue } from '../templates/template-catalogue.ts';
import { createBackgroundWork } from './background-work.ts';
import type { EventPublisher } from './event-publisher.ts';
import type { HeldCapture, LiveCapture } from './live-capture.ts';
import type { SandboxTable } from './sandbox-table.ts';

/** Makes snapshots of running sandboxes, and removes them. */
export interface Snapshotting {
  /**
   * Captures a running sandbox, which goes on, and publishes the capture. The name is looked at first. A kill until the
   * capture is complete leaves nothing; after that the snapshot is published all the same. What fails in between leaves
   * the sandbox running and the snapshots as they were. Work survives the caller.
   */
  snapshot(id: string, name: string | undefined): Promise<SnapshotRecord>;
  /** Refused as `TemplateCatalogue.remove`: in use is what a sandbox was started from that has not ended. */
  deleteTemplate(reference: string): Promise<void>;
  /** Resolves when nothing is being published any more. */
  settled(): Promise<void>;
}

export interface SnapshottingDependencies {
  readonly table: Pick<SandboxTable, 'all'>;
  readonly liveCapture: LiveCapture;
  readonly snapshots: Pick<SnapshotRepository, 'begin' | 'publish'>;
  readonly templates: Pick<TemplateCatalogue, 'snapshotName' | 'remove'>;
  readonly log: Log;
  readonly events: EventPublisher;
  /** Throws `unavailable` once the server shuts down. */
  readonly refuseWhileClosing: () => void;
}

const FAILED = 'the snapshot could not be published';

export function createSnapshotting(deps: SnapshottingDependencies): Snapshotting {
  const { snapshots, templates, log } = deps;
  const background = createBackgroundWork();

  async function publish(
    { source, draft }: HeldCapture<SnapshotDraft>,
    name: SnapshotName | undefined,
  ): Promise<SnapshotRecord> {
    const { id: sandboxId, templateId, buildId, resources, envdVersion } = source;
    const { envVars, defaultUser, defaultWorkdir, customExtensionParams } = source;
    try {
      const record = await snapshots.publish(draft, name, {
        ...{ sandboxId, resources, envdVersion },
        origin: { templateId, buildId },
        context: { envVars, defaultUser, defaultWorkdir, customExtensionParams },
      });
      const { tags } = record;
      log.info(
        { sandboxId, buildId: record.buildId, templateId: record.templateId, name, tags },
        'snapshot is published',
      );
      const { templateId: snapshotTemplateId, buildId: snapshotBuildId } = record;
      deps.events.publish(source, { type: 'sandbox.lifecycle.checkpointed', snapshotTemplateId, snapshotBuildId });
      return record;
    } catch (error) {
      log.error({ sandboxId, err: error }, FAILED);
      throw PlatformError.fromUnknown(error, FAILED);
    }
  }

  async function take(id: string, name: SnapshotName | undefined): Promise<SnapshotRecord> {
    await using capture = await deps.liveCapture(id, 'snapshot', () => snapshots.begin());
    return await publish(capture, name);
  }

  return {
    async snapshot(id, name) {
      deps.refuseWhileClosing();
      return await background.track(take(id, name === undefined ? undefined : templates.snapshotName(name)));
    },
    async deleteTemplate(reference) {
      deps.refuseWhileClosing();
      await templates.remove(reference, (buildIds) =>
        deps.table
          .all()
          .some(
            ({ record: { state, buildId } }) => state !== 'killing' && buildId !== undefined && buildIds.has(buildId),
          ),
      );
    },
    settled: background.settled,
  };
}
