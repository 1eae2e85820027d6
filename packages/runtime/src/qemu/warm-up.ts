import type { Activation, Agent } from '@agentenv/agent';
import { type InstanceId, type Log, PlatformError, type Rng, type SandboxId } from '@agentenv/core';
import { activationFor } from '../activation.ts';
import type { GuestAddressing } from '../network/slot.ts';

const USER = 'user';
const COMMAND_DEADLINE_MS = 60_000;

/** What a login shell needs: the first thing every client asks for. */
export const LOGIN_SHELL = ['/bin/bash', '-l', '-c', 'true'] as const;

/** Run once before a template is captured, so that the files they read are in its memory. */
export const TEMPLATE_WARM_UP: readonly (readonly string[])[] = [
  LOGIN_SHELL,
  ['/bin/bash', '-l', '-c', 'id >/dev/null; ls / >/dev/null; cat /etc/hostname >/dev/null; sleep 0; env >/dev/null'],
  ['/bin/bash', '-l', '-c', 'command -v python3 >/dev/null && python3 -c 1 || true'],
  ['/bin/bash', '-l', '-c', 'command -v node >/dev/null && node -e 1 || true'],
  // Otherwise every clone writes back what was dirty here: megabytes of translated code and copied pages for nothing.
  ['/bin/sync'],
];

/** As long as every sandbox id, so that the files of the real activation fit into the blocks of these. */
const NOBODY = `i${'0'.repeat(20)}`;

/**
 * An activation for nobody: the guest goes through everything the real one will ask of it, so that the files exist on its
 * disk and, in a pool, the code is translated. Its key is random and dies with the next activation.
 */
export function rehearsal(guest: GuestAddressing, generation: string, rng: Rng): Activation {
  const sandboxId = NOBODY as SandboxId;
  const instanceId = generation as InstanceId;
  const plan = { sandboxId, instanceId, templateId: 'base', channelKey: rng.bytes(16), hostname: NOBODY };
  return activationFor(plan, guest);
}

/**
 * Runs a command to its end; its output is dropped. An image without such a user or program is not an error: what cannot
 * be run cannot be warmed.
 */
export async function runOnce(agent: Agent, argv: readonly string[], log: Log, signal?: AbortSignal): Promise<void> {
  try {
    const child = await agent.spawn(
      {
        user: USER,
        argv,
        env: {},
        cwd: '',
        defaultCwd: '',
        stdin: false,
        tag: '',
        config: new Uint8Array(0),
        killAfterMs: COMMAND_DEADLINE_MS,
      },
      signal,
    );
    child.onOutput(() => undefined);
    await child.exit;
    await child.outputEnd;
  } catch (caught) {
    const error = PlatformError.fromUnknown(caught);
    if (error.code === 'sandbox_unavailable' || error.code === 'canceled') throw error;
    log.warn({ argv, error }, 'a command could not be run to warm a guest');
  }
}
