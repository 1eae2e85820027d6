import { type Clock, PlatformError } from '@agentenv/core';
import { type Process, type ProcessEventSchema, type ProcessInput, Signal } from '@agentenv/protocol/process';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { ConnectError, type ServiceImpl } from '@connectrpc/connect';
import { CALL_VALUES, type CallValues } from '../rpc/call-values.ts';
import { encodeDataFrame } from './data-frame.ts';
import { type FollowedItem, type FollowOptions, followProcess } from './follow.ts';
import { type ProcessRecord, SIGKILL, SIGTERM } from './process-record.ts';
import type { ProcessTable } from './process-table.ts';
import { spawnError } from './spawn-error.ts';
import { planProcess, type SpawnContext, terminalSize } from './spawn-plan.ts';

/** Longest wait after SIGKILL for the process to be gone, so that it is when the answer comes (T35). Milliseconds. */
const KILL_WAIT_MS = 1_000;

export interface ProcessServiceDeps extends Omit<SpawnContext, 'user' | 'home' | 'killAfterMs'> {
  readonly clock: Clock;
  readonly table: ProcessTable;
  readonly defaultUser: string;
  readonly homeOf: (user: string, signal: AbortSignal) => Promise<string>;
}

/** `process.Process` (contract e2b.md section 9.2). */
export function createProcessService(deps: ProcessServiceDeps): ServiceImpl<typeof Process> {
  const { clock, table } = deps;

  function followOptions(
    values: CallValues,
    signal: AbortSignal,
    effect: 'ends the process' | 'ends the stream',
  ): FollowOptions {
    const deadline = values.timeoutMs === undefined ? undefined : values.arrivedAt + values.timeoutMs;
    return {
      clock,
      keepaliveMs: values.keepaliveMs,
      deadline,
      deadlineEndsProcess: effect === 'ends the process',
      signal,
    };
  }

  /** Milliseconds the guest gets until it kills the process; 0 = never. */
  function killAfterMs({ timeoutMs, arrivedAt }: CallValues): number {
    if (timeoutMs === undefined) return 0;
    const left = Math.ceil(arrivedAt + timeoutMs - clock.monotonic());
    if (left <= 0) throw new PlatformError('deadline_exceeded', 'the time limit passed before the process was started');
    return left;
  }

  async function write(record: ProcessRecord, input: ProcessInput | undefined, signal: AbortSignal): Promise<void> {
    const data = input?.input;
    if (data?.case === undefined) throw new PlatformError('invalid_argument', 'input: stdin or pty is required');
    if (record.pty !== (data.case === 'pty')) {
      const kind = record.pty ? 'has a terminal: send pty input' : 'has no terminal: send stdin input';
      throw new PlatformError('internal', `process ${record.pid} ${kind}`);
    }
    await record.write(data.value, signal);
  }

  return {
    async list() {
      const records = await table.list();
      return {
        processes: records.map(({ config, pid, tag }) => ({ config, pid, ...(tag === undefined ? {} : { tag }) })),
      };
    },

    async *start(request, context) {
      const values = context.values.get(CALL_VALUES);
      const user = values.user ?? deps.defaultUser;
      const { plan, description } = await planProcess(request, {
        ...deps,
        user,
        home: () => deps.homeOf(user, context.signal),
        killAfterMs: killAfterMs(values),
      });
      const { record, subscriber } = await table.start(plan, description).catch((caught: unknown) => {
        throw spawnError(caught, plan);
      });
      const options = followOptions(values, context.signal, 'ends the process');
      yield* send(followProcess(record, subscriber, options), values);
    },

    async *connect(request, context) {
      const values = context.values.get(CALL_VALUES);
      const record = await table.find(request.process, 'any');
      const options = followOptions(values, context.signal, 'ends the stream');
      yield* send(followProcess(record, record.subscribe(), options), values);
    },

    async update(request) {
      const record = await table.find(request.process, 'live');
      if (request.pty === undefined) return {};
      if (!record.pty) throw new PlatformError('conflict', `process ${record.pid} has no terminal`);
      await record.resize(terminalSize(request.pty));
      return {};
    },

    async sendInput(request, context) {
      const record = await table.find(request.process, 'live');
      await write(record, request.input, context.signal);
      return {};
    },

    async streamInput(messages, context) {
      let record: ProcessRecord | undefined;
      for await (const { event } of messages) {
        if (event.case === 'start') {
          if (record !== undefined) throw new PlatformError('invalid_argument', 'a second start event');
          record = await table.find(event.value.process, 'live');
        } else if (event.case === 'data') {
          if (record === undefined) throw new PlatformError('invalid_argument', 'the first event must be start');
          await write(record, event.value.input, context.signal);
        }
      }
      if (record === undefined) throw new PlatformError('invalid_argument', 'no start event');
      return {};
    },

    async sendSignal(request) {
      const signal = signalNumber(request.signal);
      const record = await table.find(request.process, 'live');
      await record.signal(signal);
      if (signal === SIGKILL) await atMost(clock, KILL_WAIT_MS, record.reaped);
      return {};
    },

    async closeStdin(request) {
      const record = await table.find(request.process, 'live');
      if (record.pty) throw new ConnectError(`process ${record.pid} has a terminal, its stdin cannot be closed`);
      await record.closeStdin();
      return {};
    },
  };
}

/** The answers of a stream; bulk output takes the short way where there is one. */
async function* send(
  items: AsyncIterable<FollowedItem>,
  { writeFrame }: CallValues,
): AsyncGenerator<{ readonly event: MessageInitShape<typeof ProcessEventSchema> }, void, undefined> {
  for await (const item of items) {
    if (item.kind !== 'output') yield { event: { event: item.event } };
    else if (writeFrame !== undefined) await writeFrame(encodeDataFrame(item.output));
    else {
      const { stream, data } = item.output;
      yield { event: { event: { case: 'data', value: { output: { case: stream, value: data } } } } };
    }
  }
}

function signalNumber(signal: Signal): typeof SIGKILL | typeof SIGTERM {
  switch (signal) {
    case Signal.SIGKILL:
      return SIGKILL;
    case Signal.SIGTERM:
      return SIGTERM;
    default:
      throw new PlatformError('not_implemented', `signal ${signal} is not supported, only SIGKILL and SIGTERM`);
  }
}

/** Resolves when the promise does, at the latest after so many milliseconds. */
async function atMost(clock: Clock, milliseconds: number, promise: Promise<void>): Promise<void> {
  const late = Promise.withResolvers<void>();
  using _timer = clock.timer(milliseconds, late.resolve);
  await Promise.race([promise, late.promise]);
}
