import { PlatformError } from '@agentenv/core';
import { createFakeClock, createRecordingLog } from '@agentenv/core/testing';
import { expect, test } from 'vitest';
import type { EngineHost } from './engine-host.ts';
import type { Machine } from './machine.ts';
import { createRunningVm, type RunningVmDeps } from './running-vm.ts';

test('a capture that fails because its server lets go of the sandbox does not end it', async () => {
  const closed = Promise.withResolvers<never>();
  const asked: string[] = [];
  const ended: string[] = [];
  const machine = {
    engine: {
      identity: { name: 'engine' },
      qmp: {
        execute(command: string) {
          asked.push(command);
          return closed.promise;
        },
      },
      compact() {},
    },
    agent: { quiesce: async () => undefined },
    slot: {},
    ended: new Promise(() => undefined),
    async abandon() {
      closed.reject(new PlatformError('sandbox_unavailable', 'the engine is gone'));
    },
    async [Symbol.asyncDispose]() {
      ended.push('machine');
    },
  };
  const vm = createRunningVm({
    host: { log: createRecordingLog(), clock: createFakeClock() } as unknown as EngineHost,
    machine: machine as unknown as Machine,
    plan: { sandboxId: 'sandbox', instanceId: 'instance', channelKey: new Uint8Array(16) } as RunningVmDeps['plan'],
    exec: () => Promise.reject(new Error('no program is started')),
    clocks: { keep: () => ({ [Symbol.dispose]: () => undefined }), async [Symbol.asyncDispose]() {} },
    onCaptured: async () => undefined,
    onGone: () => ended.push('sandbox'),
  });
  const captured = expect(vm.capture('/nowhere')).rejects.toMatchObject({ message: 'the engine is gone' });
  await expect.poll(() => asked).toEqual(['stop']);
  await vm.abandon();
  await captured;
  expect(ended).toEqual([]);
});
