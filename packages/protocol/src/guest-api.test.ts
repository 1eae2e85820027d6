import { StatResponseSchema, WatchDirRequestSchema } from '@agentenv/protocol/filesystem';
import {
  ConnectRequestSchema,
  ProcessEvent_EndEventSchema,
  SendInputRequestSchema,
  SendSignalRequestSchema,
  Signal,
  StartRequestSchema,
  StartResponseSchema,
  StreamInputRequest_DataEventSchema,
  UpdateRequestSchema,
} from '@agentenv/protocol/process';
import {
  create,
  type DescMessage,
  fromJson,
  fromJsonString,
  type JsonValue,
  ScalarType,
  toJson,
} from '@bufbuild/protobuf';

import { describe, expect, test } from 'vitest';

/** Requests as recorded from the published client (contract e2b.md, appendix A). */
const RECORDED: readonly (readonly [string, DescMessage, JsonValue])[] = [
  [
    'run with user, directory and variables',
    StartRequestSchema,
    { process: { cmd: '/bin/bash', args: ['-l', '-c', 'echo hi'], envs: { X: '1' }, cwd: '/tmp' }, stdin: false },
  ],
  [
    'a terminal',
    StartRequestSchema,
    {
      process: { cmd: '/bin/bash', args: ['-i', '-l'], envs: { TERM: 'xterm-256color', LANG: 'C.UTF-8' } },
      pty: { size: { cols: 80, rows: 24 } },
    },
  ],
  ['stdin', SendInputRequestSchema, { process: { pid: 42 }, input: { stdin: 'YWJj' } }],
  ['terminal input', SendInputRequestSchema, { process: { pid: 42 }, input: { pty: 'AQI=' } }],
  ['resize', UpdateRequestSchema, { process: { pid: 42 }, pty: { size: { cols: 1, rows: 2 } } }],
  ['kill', SendSignalRequestSchema, { process: { pid: 42 }, signal: 'SIGNAL_SIGKILL' }],
  ['connect', ConnectRequestSchema, { process: { pid: 42 } }],
  ['watch', WatchDirRequestSchema, { path: 'x', recursive: true, includeEntry: true }],
];

/** The smallest answers that satisfied the clients (appendix B). */
const ANSWERS: readonly (readonly [string, DescMessage, JsonValue])[] = [
  ['start event', StartResponseSchema, { event: { start: { pid: 42 } } }],
  ['data event', StartResponseSchema, { event: { data: { stdout: 'aGkK' } } }],
  ['end event', StartResponseSchema, { event: { end: { exited: true, status: 'exit status 0' } } }],
  [
    'entry',
    StatResponseSchema,
    {
      entry: {
        name: 'a',
        type: 'FILE_TYPE_FILE',
        path: '/home/user/a',
        size: '4',
        mode: 420,
        permissions: '-rw-r--r--',
        owner: 'user',
        group: 'user',
        modifiedTime: '2026-01-01T00:00:00Z',
      },
    },
  ],
];

describe('messages of the guest API', () => {
  test.each([...RECORDED, ...ANSWERS])('%s is read and written as it is', (_name, schema, json) => {
    expect(toJson(schema, fromJson(schema, json))).toEqual(json);
  });

  test('names in snake case and numbers of signals are understood', () => {
    expect(fromJsonString(WatchDirRequestSchema, '{"include_entry":true}').includeEntry).toBe(true);
    expect(fromJsonString(SendSignalRequestSchema, '{"signal":15}').signal).toBe(Signal.SIGTERM);
  });

  test('an absent stdin is not false', () => {
    expect(create(StartRequestSchema).stdin).toBeUndefined();
    expect(fromJsonString(StartRequestSchema, '{"stdin":false}').stdin).toBe(false);
  });

  test('the two easy mistakes of the wire format: a signed exit code, and input as field 2', () => {
    expect(ProcessEvent_EndEventSchema.field.exitCode).toMatchObject({ number: 1, scalar: ScalarType.SINT32 });
    expect(StreamInputRequest_DataEventSchema.field.input.number).toBe(2);
  });
});
