import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { OPERATION_RULES, SANDBOX_OPERATIONS } from './operation-rules.ts';
import {
  applyEvent,
  SANDBOX_EVENTS,
  SANDBOX_STATES,
  type SandboxEvent,
  type SandboxState,
  visibleState,
} from './state-machine.ts';

/** The diagram of agentenv.md section 6, written down a second time and by hand. */
const DIAGRAM: readonly (readonly [SandboxState, SandboxEvent, SandboxState | 'gone'])[] = [
  ['creating', 'ready', 'running'],
  ['creating', 'launch-failed', 'killing'],
  ['creating', 'kill', 'killing'],
  ['creating', 'runtime-ended', 'killing'],
  ['running', 'snapshot', 'snapshotting'],
  ['running', 'fork', 'forking'],
  ['running', 'pause', 'pausing'],
  ['running', 'kill', 'killing'],
  ['running', 'runtime-ended', 'killing'],
  ['snapshotting', 'captured', 'running'],
  ['snapshotting', 'capture-refused', 'running'],
  ['snapshotting', 'capture-lost', 'killing'],
  ['snapshotting', 'kill', 'killing'],
  ['snapshotting', 'runtime-ended', 'killing'],
  ['forking', 'captured', 'running'],
  ['forking', 'capture-refused', 'running'],
  ['forking', 'capture-lost', 'killing'],
  ['forking', 'kill', 'killing'],
  ['forking', 'runtime-ended', 'killing'],
  ['pausing', 'stored', 'paused'],
  ['pausing', 'capture-refused', 'running'],
  ['pausing', 'capture-lost', 'killing'],
  ['pausing', 'kill', 'killing'],
  ['pausing', 'runtime-ended', 'killing'],
  ['paused', 'resume', 'resuming'],
  ['paused', 'kill', 'killing'],
  ['resuming', 'ready', 'running'],
  ['resuming', 'launch-failed', 'paused'],
  ['resuming', 'runtime-ended', 'paused'],
  ['resuming', 'kill', 'killing'],
  ['killing', 'released', 'gone'],
  ['killing', 'release-failed', 'killing'],
];

const expected = new Map(DIAGRAM.map(([from, event, to]) => [`${from} ${event}`, to]));

describe('sandbox state machine', () => {
  const pairs = SANDBOX_STATES.flatMap((state) => SANDBOX_EVENTS.map((event) => [state, event] as const));

  test.each(pairs)('%s on %s goes exactly where the diagram says', (state, event) => {
    expect(applyEvent(state, event)?.to).toBe(expected.get(`${state} ${event}`));
  });

  test('only listed transitions happen in any sequence of events, and none leaves the known states', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...SANDBOX_EVENTS), { maxLength: 60 }), (events) => {
        let state: SandboxState | 'gone' = 'creating';
        for (const event of events) {
          if (state === 'gone') break;
          const transition = applyEvent(state, event);
          const listed = expected.get(`${state} ${event}`);
          expect(transition?.to).toBe(listed);
          if (transition !== undefined) state = transition.to;
        }
        expect(['gone', ...SANDBOX_STATES]).toContain(state);
      }),
    );
  });

  test('every state can be killed or is already being killed, and nothing is reached after it but the end', () => {
    for (const state of SANDBOX_STATES) {
      if (state === 'killing') continue;
      expect(applyEvent(state, 'kill')).toEqual({ to: 'killing', effect: 'unwind' });
    }
    const after = SANDBOX_EVENTS.flatMap((event) => applyEvent('killing', event)?.to ?? []);
    expect(new Set(after)).toEqual(new Set(['gone', 'killing']));
  });

  test('every state is reachable from creating', () => {
    const seen = new Set<SandboxState | 'gone'>(['creating']);
    for (let grew = true; grew; ) {
      const before = seen.size;
      for (const [from, , to] of DIAGRAM) if (seen.has(from)) seen.add(to);
      grew = seen.size > before;
    }
    expect(seen).toEqual(new Set(['gone', ...SANDBOX_STATES]));
  });

  test('clients see only running and paused, and never one that is being made or killed', () => {
    const shown = Object.fromEntries(SANDBOX_STATES.map((state) => [state, visibleState(state)]));
    expect(shown).toEqual({
      creating: undefined,
      running: 'running',
      snapshotting: 'running',
      forking: 'running',
      pausing: 'paused',
      paused: 'paused',
      resuming: 'running',
      killing: undefined,
    });
  });

  test('every operation has a verdict for every state and a killing sandbox only lets a kill join', () => {
    for (const operation of SANDBOX_OPERATIONS) {
      expect(Object.keys(OPERATION_RULES[operation]).sort()).toEqual([...SANDBOX_STATES].sort());
      expect(OPERATION_RULES[operation].killing).toBe(operation === 'kill' ? 'join' : 'not-found');
    }
  });
});
