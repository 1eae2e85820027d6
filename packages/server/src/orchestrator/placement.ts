import {
  type Admission,
  type Clock,
  callWithin,
  createUndoStack,
  type HostCapacity,
  type Reservation,
  type Resources,
  type UndoStack,
} from '@agentenv/core';
import type { HostCapacityProbe } from './host-capacity.ts';

/** The place of one generation on the host. */
export interface Place {
  readonly reservation: Reservation;
  /** What the generation holds: the place for a start. */
  readonly held: UndoStack;
}

/** Finds places on the host for generations. */
export interface Placement {
  look(): Promise<HostCapacity>;
  /** Synchronous, so that nothing comes between the decision and its effect. Refused: `capacity` naming the limit. */
  take(resources: Resources, host: HostCapacity): Place;
}

/** Longest look at the host's memory and disk, milliseconds. */
const CAPACITY_TIMEOUT_MS = 5_000;

export function createPlacement(deps: {
  readonly admission: Admission;
  readonly hostCapacity: HostCapacityProbe;
  readonly clock: Clock;
  readonly releaseTimeoutMs: number;
}): Placement {
  const { admission, clock } = deps;
  return {
    look() {
      const bounds = { what: "the host's memory and disk", timeoutMs: CAPACITY_TIMEOUT_MS, graceMs: 0 };
      return callWithin(clock, bounds, () => deps.hostCapacity());
    },
    take(resources, host) {
      const reservation = admission.reserve(resources, host);
      const held = createUndoStack({ clock, stepTimeoutMs: deps.releaseTimeoutMs });
      held.push('place on the host', () => reservation.release());
      return { reservation, held };
    },
  };
}
