import type { LifecycleChange, SandboxRecord } from '@agentenv/core';

/**
 * Takes what happened to sandboxes, in the turn in which it is in effect. Never waits and never fails: nothing that
 * listens can hold up or break an operation.
 */
export interface EventPublisher {
  publish(sandbox: SandboxRecord, change: LifecycleChange): void;
}
