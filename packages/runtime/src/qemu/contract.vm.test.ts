import type { RunningSandbox } from '../backend.ts';
import { describeBackendContract } from '../testing/contract.ts';
import { INTERNET } from '../testing/fake-internet.ts';
import { provokeInGuest, runInGuest } from '../testing/guest-run.ts';
import type { BackendHarness, ProvokedEnd } from '../testing/harness.ts';
import { createQemuWorld } from '../testing/qemu-world.ts';

const POWER: Record<Exclude<ProvokedEnd, 'engine-died'>, readonly string[]> = {
  'guest-poweroff': ['poweroff'],
  'guest-reboot': ['reboot'],
  'guest-panic': ['sh', '-c', 'echo c > /proc/sysrq-trigger'],
};

async function makeHarness(): Promise<BackendHarness> {
  const world = await createQemuWorld();
  return {
    backend: world.open(),
    rootfs: world.artifacts.rootfs.base,
    resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
    internetHost: INTERNET.web,
    deadlineMs: 15_000,
    emptyDirectory: world.emptyDirectory,
    async provoke({ identity, agent }: RunningSandbox, end) {
      if (end === 'engine-died') process.kill(Number(identity.pid), 'SIGKILL');
      else await provokeInGuest(agent, POWER[end]);
    },
    async reachesInternet({ agent }) {
      const attempt = ['timeout', '5', 'bash', '-c', `: >/dev/tcp/${INTERNET.web}/80`];
      return (await runInGuest(agent, attempt)).code === 0;
    },
    async crash() {
      await world.crash();
      return world.open();
    },
    leftovers: world.leftovers,
    [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
  };
}

describeBackendContract('qemu', makeHarness);
