import type { Agent } from '@agentenv/agent';
import type { RunningSandbox } from '../backend.ts';
import { describeBackendContract } from '../testing/contract.ts';
import { INTERNET } from '../testing/fake-internet.ts';
import type { BackendHarness, ProvokedEnd } from '../testing/harness.ts';
import { createQemuWorld } from '../testing/qemu-world.ts';

const POWER: Record<Exclude<ProvokedEnd, 'engine-died'>, readonly string[]> = {
  'guest-poweroff': ['poweroff'],
  'guest-reboot': ['reboot'],
  'guest-panic': ['sh', '-c', 'echo c > /proc/sysrq-trigger'],
};

function spawnAsRoot(agent: Agent, argv: readonly string[]) {
  return agent.spawn({
    ...{ user: 'root', argv, env: {}, cwd: '', defaultCwd: '', stdin: false, tag: '' },
    config: new Uint8Array(0),
    killAfterMs: 0,
  });
}

async function makeHarness(): Promise<BackendHarness> {
  const world = await createQemuWorld();
  return {
    backend: world.open(),
    rootfs: world.artifacts.rootfs.base,
    resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
    internetHost: INTERNET.web,
    deadlineMs: 15_000,
    emptyDirectory: world.emptyDirectory,
    async provoke(sandbox: RunningSandbox, end) {
      if (end === 'engine-died') process.kill(Number(sandbox.identity.pid), 'SIGKILL');
      // The guest may be gone before it says that the command was started.
      else await spawnAsRoot(sandbox.agent, POWER[end]).catch(() => undefined);
    },
    async reachesInternet({ agent }) {
      const attempt = await spawnAsRoot(agent, ['timeout', '5', 'bash', '-c', `: >/dev/tcp/${INTERNET.web}/80`]);
      attempt.onOutput(() => undefined);
      return (await attempt.exit).code === 0;
    },
    crash: async () => world.open(),
    leftovers: world.leftovers,
    [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
  };
}

describeBackendContract('qemu', makeHarness);
