import type { SandboxState } from './state-machine.ts';

/** Operations on an existing sandbox whose answer depends on its state. */
export const SANDBOX_OPERATIONS = [
  'pause',
  'resume',
  'connect',
  'timeout',
  'refresh',
  'network',
  'snapshot',
  'fork',
  'kill',
] as const;
export type SandboxOperation = (typeof SANDBOX_OPERATIONS)[number];

export type OperationVerdict =
  /** Do it now. */
  | 'allow'
  /** Wait for the transition under way, at most `STATE_WAIT_MS`, then look again. */
  | 'wait'
  /** Resume first. */
  | 'resume'
  /** Stop whatever is under way and do it. */
  | 'pre-empt'
  /** Share the outcome of the one under way. */
  | 'join'
  /** 409 naming the state. */
  | 'conflict'
  /** 404, as if it did not exist. */
  | 'not-found';

/** How long a request waits for a transition to finish, milliseconds (agentenv.md section 6). */
export const STATE_WAIT_MS = 60_000;

/** The state × operation matrix (agentenv.md section 6 with the decisions of the contract). */
export const OPERATION_RULES: Readonly<Record<SandboxOperation, Readonly<Record<SandboxState, OperationVerdict>>>> = {
  pause: {
    creating: 'conflict',
    running: 'allow',
    snapshotting: 'conflict',
    forking: 'conflict',
    pausing: 'join',
    paused: 'conflict',
    resuming: 'conflict',
    killing: 'not-found',
  },
  resume: {
    creating: 'conflict',
    running: 'conflict',
    snapshotting: 'conflict',
    forking: 'conflict',
    pausing: 'conflict',
    paused: 'allow',
    resuming: 'join',
    killing: 'not-found',
  },
  connect: {
    creating: 'wait',
    running: 'allow',
    snapshotting: 'wait',
    forking: 'wait',
    pausing: 'wait',
    paused: 'resume',
    resuming: 'join',
    killing: 'not-found',
  },
  timeout: {
    creating: 'wait',
    running: 'allow',
    snapshotting: 'wait',
    forking: 'wait',
    pausing: 'conflict',
    paused: 'conflict',
    resuming: 'wait',
    killing: 'not-found',
  },
  refresh: {
    creating: 'wait',
    running: 'allow',
    snapshotting: 'wait',
    forking: 'wait',
    pausing: 'conflict',
    paused: 'conflict',
    resuming: 'wait',
    killing: 'not-found',
  },
  network: {
    creating: 'conflict',
    running: 'allow',
    snapshotting: 'wait',
    forking: 'wait',
    pausing: 'conflict',
    paused: 'conflict',
    resuming: 'conflict',
    killing: 'not-found',
  },
  snapshot: {
    creating: 'conflict',
    running: 'allow',
    snapshotting: 'conflict',
    forking: 'conflict',
    pausing: 'conflict',
    paused: 'conflict',
    resuming: 'conflict',
    killing: 'not-found',
  },
  fork: {
    creating: 'conflict',
    running: 'allow',
    snapshotting: 'conflict',
    forking: 'conflict',
    pausing: 'conflict',
    paused: 'conflict',
    resuming: 'conflict',
    killing: 'not-found',
  },
  kill: {
    creating: 'pre-empt',
    running: 'pre-empt',
    snapshotting: 'pre-empt',
    forking: 'pre-empt',
    pausing: 'pre-empt',
    paused: 'pre-empt',
    resuming: 'pre-empt',
    killing: 'join',
  },
};
