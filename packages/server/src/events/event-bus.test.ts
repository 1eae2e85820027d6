import { readFileSync } from 'node:fs';
import { createUuidSource, LIFECYCLE_EVENT_TYPES, type SandboxRecord } from '@agentenv/core';
import { createFakeClock, createRecordingLog, createSeededRandom, sandboxRecord } from '@agentenv/core/testing';
import { CONTROL_PLANE_DOCUMENT } from '@agentenv/protocol/control-plane';
import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { createEventBus, DEFAULT_EVENT_BUS_LIMITS, type EventBusLimits, type EventMessage } from './event-bus.ts';

/** What the document of the control plane says of events. */
const ajv = new Ajv2020({ strict: false });
formats.default(ajv, ['date-time', 'uuid']);
ajv.addSchema(parse(readFileSync(CONTROL_PLANE_DOCUMENT, 'utf8')), 'document');
const conforms = ajv.compile({
  $ref: 'document#/components/schemas/LifecycleEvent',
  unevaluatedProperties: false,
  properties: {
    event_data: {
      $ref: 'document#/components/schemas/LifecycleEvent/properties/event_data',
      unevaluatedProperties: false,
    },
  },
});

const CREATED = { type: 'sandbox.lifecycle.created' } as const;

function start(limits: Partial<EventBusLimits> = {}) {
  const clock = createFakeClock();
  const log = createRecordingLog();
  const counted: string[] = [];
  const bus = createEventBus({
    ...{ clock, log, teamId: 'default', limits: { ...DEFAULT_EVENT_BUS_LIMITS, ...limits } },
    ids: createUuidSource({ clock, rng: createSeededRandom(1) }),
    onPublished: (type) => counted.push(type),
  });
  const publish = (changes: Partial<SandboxRecord> = {}): EventMessage => {
    bus.publish(sandboxRecord(changes), CREATED);
    const message = bus.at(bus.end - 1);
    if (message === undefined) throw new Error('nothing was kept');
    return message;
  };
  return { bus, clock, log, counted, publish };
}

describe('an event', () => {
  const SOURCE = 'i00000000000000000002';
  const deadline = Date.UTC(2026, 0, 2);
  it.each([
    [{ type: 'sandbox.lifecycle.created' }, 'create', {}],
    [{ type: 'sandbox.lifecycle.resumed' }, 'resume', {}],
    [{ type: 'sandbox.lifecycle.forked', sourceSandboxId: SOURCE }, 'fork', { source_sandbox_id: SOURCE }],
    [
      { type: 'sandbox.lifecycle.updated', updated: 'timeout', deadline },
      'update',
      { updated: 'timeout', set_timeout: '2026-01-02T00:00:00.000Z' },
    ],
    [{ type: 'sandbox.lifecycle.updated', updated: 'network', deadline: undefined }, 'update', { updated: 'network' }],
    [
      { type: 'sandbox.lifecycle.checkpointed', snapshotTemplateId: 't', snapshotBuildId: 'b' },
      'checkpoint',
      { snapshot_template_id: 't', snapshot_build_id: 'b' },
    ],
    [
      { type: 'sandbox.lifecycle.paused', ranSince: Date.UTC(2025, 11, 31, 23, 59) },
      'pause',
      {
        execution: {
          ...{ started_at: '2025-12-31T23:59:00.000Z', vcpu_count: 2, memory_mb: 1024, execution_time: 60_000 },
        },
      },
    ],
    [{ type: 'sandbox.lifecycle.killed', reason: 'expired', ranSince: undefined }, 'kill', { reason: 'expired' }],
  ] as const)('%j has the form of version 2 of E2B’s', (change, label, data) => {
    const { bus } = start();
    const sandbox = sandboxRecord({ metadata: { team: 'alpha' } });
    bus.publish(sandbox, change);
    const message = bus.at(0);
    expect(JSON.parse(message?.json ?? '')).toEqual({
      version: 'v2',
      id: message?.id,
      type: change.type,
      timestamp: '2026-01-01T00:00:00.000Z',
      event_category: 'lifecycle',
      event_label: label,
      event_data: { sandbox_metadata: { team: 'alpha' }, ...data },
      sandbox_id: sandbox.id,
      sandbox_execution_id: sandbox.instanceId,
      sandbox_template_id: sandbox.templateId,
      sandbox_build_id: sandbox.buildId,
      sandbox_team_id: 'default',
    });
    expect(message?.json).not.toContain('\n');
    expect(conforms(JSON.parse(message?.json ?? '')) ? [] : conforms.errors).toEqual([]);
  });

  it('says nothing that is secret', () => {
    const { publish, log } = start();
    const secrets = {
      channelKey: '5ec4e7'.repeat(5),
      envVars: { KEY: '5ec4e7' },
      customExtensionParams: { a: '5ec4e7' },
    };
    expect(publish(secrets).json).not.toContain('5ec4e7');
    publish({ metadata: { private: 'planted' } });
    expect(JSON.stringify(log.lines)).not.toContain('planted');
  });

  it('is counted and a line of the log', () => {
    const { publish, log, counted } = start();
    const { id, sandboxId } = publish();
    expect(counted).toEqual(['sandbox.lifecycle.created']);
    expect(log.find('info', 'lifecycle event')).toMatchObject([{ fields: { eventId: id, sandboxId } }]);
    expect(LIFECYCLE_EVENT_TYPES).toContain(counted[0]);
  });
});

describe('listeners', () => {
  it('are called in order of events until they end', () => {
    const { bus, publish } = start();
    const heard: string[] = [];
    const listener = (message: EventMessage): void => void heard.push(message.id);
    const first = bus.subscribe(listener);
    using _second = bus.subscribe(listener);
    const one = publish();
    first[Symbol.dispose]();
    const two = publish();
    expect(heard).toEqual([one.id, one.id, two.id]);
  });

  it('that throw harm neither whoever publishes nor the others', () => {
    const { bus, publish, log } = start();
    const heard: string[] = [];
    using _bad = bus.subscribe(() => {
      throw new Error('bad');
    });
    using _good = bus.subscribe(({ id }) => heard.push(id));
    const { id } = publish();
    expect(heard).toEqual([id]);
    expect(log.find('error', 'a listener of lifecycle events failed')).toHaveLength(1);
  });
});

describe('a reader that comes back', () => {
  it('goes on behind what it saw', () => {
    const { bus, publish } = start();
    const origin = bus.idBefore(0);
    expect(bus.after(origin)).toEqual({ next: 0, missed: false });
    const [one, two] = [publish(), publish()];
    expect(bus.after(origin)).toEqual({ next: 0, missed: false });
    expect(bus.after(one.id)).toEqual({ next: 1, missed: false });
    expect(bus.after(two.id)).toEqual({ next: 2, missed: false });
    expect(bus.idBefore(2)).toBe(two.id);
    expect(bus.idBefore(1)).toBe(one.id);
  });

  it('learns when what it did not see is gone', () => {
    const { bus, publish } = start({ events: 2 });
    const origin = bus.idBefore(0);
    const ids = Array.from({ length: 4 }, () => publish().id);
    expect(bus.after(origin)).toEqual({ next: 2, missed: true });
    expect(bus.after(ids[0] ?? '')).toEqual({ next: 2, missed: true });
    // Everything after the second is here, though itself it is not.
    expect(bus.after(ids[1] ?? '')).toEqual({ next: 2, missed: false });
    expect(bus.after(ids[2] ?? '')).toEqual({ next: 3, missed: false });
    expect([bus.at(1), bus.at(2)?.id, bus.at(4)]).toEqual([undefined, ids[2], undefined]);
  });

  it('of a former server gets what there is and learns that there may have been more', async () => {
    const former = start();
    const seen = former.publish().id;
    const { bus, clock, publish } = start();
    await clock.advance(1_000);
    expect(bus.after(seen)).toEqual({ next: 0, missed: true });
    publish();
    expect(bus.after(seen)).toEqual({ next: 0, missed: true });
    expect(bus.after('ffffffff-ffff-7fff-bfff-ffffffffffff')).toEqual({ next: 1, missed: true });
  });
});

it('keeps no more bytes than it may, but always the newest event', () => {
  const { bus, publish } = start({ bytes: 2_000 });
  for (let index = 0; index < 50; index++) publish();
  const size = publish().json.length;
  expect(bus.at(bus.end - 1)).toBeDefined();
  expect(bus.at(bus.end - Math.floor(2_000 / size))).toBeDefined();
  expect(bus.at(bus.end - Math.floor(2_000 / size) - 1)).toBeUndefined();
  const large = publish({ metadata: { text: 'x'.repeat(5_000) } });
  expect(bus.at(bus.end - 1)).toBe(large);
  expect(bus.at(bus.end - 2)).toBeUndefined();
});
