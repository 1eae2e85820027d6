import { PlatformError, SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { createClockKeeper } from './clock-keeper.ts';
import { createRunningVm, type RunningVm, type RunningVmDeps } from './running-vm.ts';

/** A virtual machine of which every capture fails when its guest is asked to stand still; `goesOn`: whether it runs then. */
function vmThatCannotBeCaptured(goesOn: boolean): { readonly vm: RunningVm; compacted(): number } {
  const clock = createFakeClock();
  let compacted = 0;
  const gone = () => Promise.reject(new PlatformError('sandbox_unavailable', 'the channel is gone'));
  const engine = {
    identity: { name: 'engine' },
    qmp: { execute: async () => undefined },
    compact: () => compacted++,
  };
  const agent = {
    quiesce: () => Promise.reject(new PlatformError('deadline_exceeded', 'the guest did not stand still')),
    activate: goesOn ? async () => undefined : gone,
  };
  const machine = {
    ...{ engine, agent, slot: { index: 1, uid: 1, hostInteractionIp: '' } },
    ended: new Promise(() => undefined),
    async [Symbol.asyncDispose]() {},
  };
  const deps = {
    host: { clock, log: SILENT_LOG },
    ...{ machine, plan: { sandboxId: 'sandbox', instanceId: 'instance', channelKey: new Uint8Array(16) } },
    ...{ clocks: createClockKeeper(clock), onGone() {} },
  };
  return { vm: createRunningVm(deps as unknown as RunningVmDeps), compacted: () => compacted };
}

describe('a virtual machine whose capture failed', () => {
  test.each(['capture', 'snapshot'] as const)('has its layers merged after a %s, as it goes on', async (how) => {
    const { vm, compacted } = vmThatCannotBeCaptured(true);
    for (let failures = 1; failures < 3; failures++) {
      await expect(vm[how]('/nowhere')).rejects.toMatchObject({ code: 'deadline_exceeded' });
      expect(compacted()).toBe(failures);
    }
  });

  test('has nothing merged when it does not go on', async () => {
    const { vm, compacted } = vmThatCannotBeCaptured(false);
    await expect(vm.capture('/nowhere')).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    expect(compacted()).toBe(0);
  });
});
