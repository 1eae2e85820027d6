import type { Agent, GuestProcess, ProcessExit, SpawnRequest } from '@agentenv/agent';
import { rootProcess } from '@agentenv/agent/testing';

export interface Finished extends ProcessExit {
  readonly stdout: string;
  readonly stderr: string;
}

/** Starts a process with everything at its simplest. */
export function start(agent: Agent, argv: readonly string[], more: Partial<SpawnRequest> = {}): Promise<GuestProcess> {
  return agent.spawn(rootProcess(argv, more));
}

/** Collects the output of a process and waits for its end. */
export async function finish(process: GuestProcess): Promise<Finished> {
  const text = { stdout: '', stderr: '', pty: '' };
  process.onOutput(({ stream, data }) => {
    text[stream] += Buffer.from(data).toString();
  });
  const exit = await process.exit;
  await process.outputEnd;
  return { ...exit, stdout: text.stdout + text.pty, stderr: text.stderr };
}

/** Runs a shell script to its end. */
export async function sh(agent: Agent, script: string, more: Partial<SpawnRequest> = {}): Promise<Finished> {
  return await finish(await start(agent, ['sh', '-c', script], more));
}
