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
