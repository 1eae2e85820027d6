/** Everything a sandbox can be; there is no terminal record, an ended sandbox simply disappears (agentenv.md section 6). */
export const SANDBOX_STATES = [
  'creating',
  'running',
  'snapshotting',
  'forking',
  'pausing',
  'paused',
  'resuming',
  'killing',
] as const;
export type SandboxState = (typeof SANDBOX_STATES)[number];

/** What can happen to a sandbox. */
export const SANDBOX_EVENTS = [
  /** A launch finished: the guest answers. */
  'ready',
  /** A launch failed, whatever the stage. */
  'launch-failed',
  'snapshot',
  'fork',
  'pause',
  'resume',
  /** The capture of a snapshot or a fork is complete; the source goes on, what is made of the capture does not concern it. */
  'captured',
  /** A paused sandbox is durable. */
  'stored',
  /** A capture failed and the source can go on. */
  'capture-refused',
  /** A capture failed and the source can no longer run. */
  'capture-lost',
  /** DELETE, an expired deadline with action `kill`, or shutdown. */
  'kill',
  /** The engine or its guest is gone without being asked. */
  'runtime-ended',
  /** Everything the sandbox held is released. */
  'released',
  /** Something it held could not be released; it is tried again. */
  'release-failed',
] as const;
export type SandboxEvent = (typeof SANDBOX_EVENTS)[number];

/** What whoever applied a transition has to do next. */
export type SandboxEffect =
  /** Start the timeout clock and publish the data-plane route. */
  | 'arm-deadline'
  /** Restore the generation from what is stored. */
  | 'launch'
  /** Freeze, quiesce and capture. */
  | 'capture'
  /** Let the held guest go on. */
  | 'release-guest'
  /** Stop the engine, the stored state stays. */
  | 'stop-engine'
  /** Undo a launch, the stored state stays. */
  | 'undo-launch'
  /** Abort the running step and release everything in reverse order. */
  | 'unwind'
  /** Release again what is still held. */
  | 'retry-unwind'
  /** Remove the record. */
  | 'forget';

export interface Transition {
  /** `gone`: there is no sandbox any more. */
  readonly to: SandboxState | 'gone';
  readonly effect: SandboxEffect;
}

type TransitionTable = Readonly<Record<SandboxState, Readonly<Partial<Record<SandboxEvent, Transition>>>>>;

const UNWIND: Transition = { to: 'killing', effect: 'unwind' };

/**
 * The whole life cycle as data. Every end goes through `killing`, so resources are released in one place; a sandbox in
 * `killing` is invisible to every list and to the data plane.
 */
export const TRANSITIONS: TransitionTable = {
  creating: {
    ready: { to: 'running', effect: 'arm-deadline' },
    'launch-failed': UNWIND,
    kill: UNWIND,
    'runtime-ended': UNWIND,
  },
  running: {
    snapshot: { to: 'snapshotting', effect: 'capture' },
    fork: { to: 'forking', effect: 'capture' },
    pause: { to: 'pausing', effect: 'capture' },
    kill: UNWIND,
    'runtime-ended': UNWIND,
  },
  snapshotting: {
    captured: { to: 'running', effect: 'release-guest' },
    'capture-refused': { to: 'running', effect: 'release-guest' },
    'capture-lost': UNWIND,
    kill: UNWIND,
    'runtime-ended': UNWIND,
  },
  forking: {
    captured: { to: 'running', effect: 'release-guest' },
    'capture-refused': { to: 'running', effect: 'release-guest' },
    'capture-lost': UNWIND,
    kill: UNWIND,
    'runtime-ended': UNWIND,
  },
  pausing: {
    stored: { to: 'paused', effect: 'stop-engine' },
    'capture-refused': { to: 'running', effect: 'release-guest' },
    'capture-lost': UNWIND,
    kill: UNWIND,
    'runtime-ended': UNWIND,
  },
  paused: {
    resume: { to: 'resuming', effect: 'launch' },
    kill: UNWIND,
  },
  resuming: {
    ready: { to: 'running', effect: 'arm-deadline' },
    'launch-failed': { to: 'paused', effect: 'undo-launch' },
    'runtime-ended': { to: 'paused', effect: 'undo-launch' },
    kill: UNWIND,
  },
  killing: {
    released: { to: 'gone', effect: 'forget' },
    'release-failed': { to: 'killing', effect: 'retry-unwind' },
  },
};

/** The transition for `event` in `state`; undefined when the event has no meaning there and must change nothing. */
export function applyEvent(state: SandboxState, event: SandboxEvent): Transition | undefined {
  return TRANSITIONS[state][event];
}

/** What clients see (contract e2b.md section 5: only these two; a sandbox under snapshot or fork reports `running`). */
export type VisibleState = 'running' | 'paused';

/**
 * The state clients see; undefined for one that is being killed, which has vanished already (e2b.md 6.2), and for one that is
 * being made, which nobody is told of before the custom extension has answered (hooks.md, statement 7).
 */
export function visibleState(state: SandboxState): VisibleState | undefined {
  switch (state) {
    case 'running':
    case 'snapshotting':
    case 'forking':
    case 'resuming':
      return 'running';
    case 'pausing':
    case 'paused':
      return 'paused';
    case 'creating':
    case 'killing':
      return undefined;
  }
}
