import type { OperationName } from '../channel/calls.ts';

const SECOND = 1000;

/**
 * Longest wait for the guest's response, milliseconds: a backstop against a guest that does not answer. Callers with
 * their own deadline give a signal. Generous because an emulated guest under full load is slow.
 */
export const DEADLINES = {
  ping: 30 * SECOND,
  activate: 30 * SECOND,
  quiesce: 10 * SECOND,
  settle: 60 * SECOND,
  setClock: 30 * SECOND,
  addEntropy: 30 * SECOND,
  metrics: 30 * SECOND,
  spawn: 60 * SECOND,
  signal: 30 * SECOND,
  resize: 30 * SECOND,
  listProcesses: 30 * SECOND,
  lookupUser: 30 * SECOND,
  stat: 60 * SECOND,
  listDir: 120 * SECOND,
  makeDir: 60 * SECOND,
  rename: 60 * SECOND,
  remove: 600 * SECOND,
  readFile: 60 * SECOND,
  writeFile: 600 * SECOND,
  composeFile: 600 * SECOND,
  watch: 60 * SECOND,
  connectPort: 60 * SECOND,
  listenPort: 30 * SECOND,
  source: 30 * SECOND,
  sink: 30 * SECOND,
} as const satisfies Record<OperationName, number>;

/** Longest time a transfer waits for the guest to move a byte, milliseconds. */
export const STALL_DEADLINE = 120 * SECOND;
