import type { components } from '@agentenv/protocol/control-plane';
import { type EventId, uuidTime } from './ids.ts';
import type { SandboxRecord } from './sandbox.ts';

/**
 * What is told of a sandbox from outside, in the words of E2B's lifecycle events; `forked` is told of every child
 * (contract hooks.md 2.5, agentenv.md section 18).
 */
export const LIFECYCLE_EVENT_TYPES = [
  'sandbox.lifecycle.created',
  'sandbox.lifecycle.forked',
  'sandbox.lifecycle.updated',
  'sandbox.lifecycle.checkpointed',
  'sandbox.lifecycle.paused',
  'sandbox.lifecycle.resumed',
  'sandbox.lifecycle.killed',
] as const;

export type LifecycleEventType = (typeof LIFECYCLE_EVENT_TYPES)[number];

/**
 * What one kind of event says beside which sandbox it is about. `ranSince`: when the generation that ended with it had
 * begun, milliseconds since the epoch; undefined when nothing ran, or nobody knows when it ended.
 */
export type LifecycleChange =
  | { readonly type: 'sandbox.lifecycle.created' }
  /** The sandbox is the child. */
  | { readonly type: 'sandbox.lifecycle.forked'; readonly sourceSandboxId: string }
  | {
      readonly type: 'sandbox.lifecycle.updated';
      readonly updated: 'timeout' | 'network';
      /** When its timeout fires now, milliseconds since the epoch; undefined: unchanged. */
      readonly deadline: number | undefined;
    }
  | {
      readonly type: 'sandbox.lifecycle.checkpointed';
      readonly snapshotTemplateId: string;
      readonly snapshotBuildId: string;
    }
  | { readonly type: 'sandbox.lifecycle.paused'; readonly ranSince: number | undefined }
  | { readonly type: 'sandbox.lifecycle.resumed' }
  | { readonly type: 'sandbox.lifecycle.killed'; readonly reason: string; readonly ranSince: number | undefined };

/** Something that happened to a sandbox and stays so: it is told once, when it is in effect. */
export interface LifecycleEvent {
  readonly id: EventId;
  /** Milliseconds since the epoch. */
  readonly at: number;
  readonly sandbox: Pick<SandboxRecord, 'id' | 'instanceId' | 'templateId' | 'buildId' | 'metadata' | 'resources'>;
  readonly change: LifecycleChange;
}

type LifecycleEventBody = components['schemas']['LifecycleEvent'];

/** The words E2B has for the types beside their names. */
const LABELS: Readonly<Record<LifecycleEventType, LifecycleEventBody['event_label']>> = {
  'sandbox.lifecycle.created': 'create',
  'sandbox.lifecycle.forked': 'fork',
  'sandbox.lifecycle.updated': 'update',
  'sandbox.lifecycle.checkpointed': 'checkpoint',
  'sandbox.lifecycle.paused': 'pause',
  'sandbox.lifecycle.resumed': 'resume',
  'sandbox.lifecycle.killed': 'kill',
};

function dataOf(change: LifecycleChange): Partial<LifecycleEventBody['event_data']> {
  switch (change.type) {
    case 'sandbox.lifecycle.forked':
      return { source_sandbox_id: change.sourceSandboxId };
    case 'sandbox.lifecycle.updated': {
      const { updated, deadline } = change;
      return { updated, ...(deadline === undefined ? {} : { set_timeout: new Date(deadline).toISOString() }) };
    }
    case 'sandbox.lifecycle.checkpointed':
      return { snapshot_template_id: change.snapshotTemplateId, snapshot_build_id: change.snapshotBuildId };
    case 'sandbox.lifecycle.killed':
      return { reason: change.reason };
    default:
      return {};
  }
}

function executionOf({ at, change, sandbox }: LifecycleEvent) {
  if (!('ranSince' in change) || change.ranSince === undefined) return {};
  const { ranSince } = change;
  return {
    execution: {
      started_at: new Date(ranSince).toISOString(),
      vcpu_count: sandbox.resources.vcpus,
      memory_mb: sandbox.resources.memoryMB,
      execution_time: Math.max(0, Math.round(at - ranSince)),
    },
  };
}

/** The form in which everybody outside gets it: version 2 of E2B's event (contract hooks.md 2.5). Times are RFC 3339. */
export function lifecycleEventBody(event: LifecycleEvent, teamId: string): LifecycleEventBody {
  const { id, at, sandbox, change } = event;
  return {
    version: 'v2',
    id,
    type: change.type,
    timestamp: new Date(at).toISOString(),
    event_category: 'lifecycle',
    event_label: LABELS[change.type],
    event_data: {
      sandbox_metadata: sandbox.metadata,
      ...dataOf(change),
      ...executionOf(event),
    },
    sandbox_id: sandbox.id,
    sandbox_execution_id: sandbox.instanceId,
    sandbox_template_id: sandbox.templateId,
    sandbox_build_id: sandbox.buildId ?? '',
    sandbox_team_id: teamId,
  };
}

/** Since when the present generation of a sandbox has been there: its id was made then. */
export function generationBegan({ instanceId }: Pick<SandboxRecord, 'instanceId'>): number | undefined {
  return uuidTime(instanceId);
}
