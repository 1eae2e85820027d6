import type { Agent } from '@agentenv/agent';

export interface GuestRun {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a program in a guest to its end. */
export async function runInGuest(
  agent: Agent,
  argv: readonly string[],
  options: { readonly user?: string } = {},
): Promise<GuestRun> {
  const child = await agent.spawn({
    user: options.user ?? 'user',
    ...{ argv, env: {}, cwd: '', defaultCwd: '', stdin: false, tag: '' },
    config: new Uint8Array(0),
    killAfterMs: 120_000,
  });
  const pieces: { readonly stream: string; readonly data: Uint8Array }[] = [];
  child.onOutput(({ stream, data }) => {
    pieces.push({ stream, data: Uint8Array.from(data) });
  });
  const { code } = await child.exit;
  await child.outputEnd;
  const text = (name: string) =>
    Buffer.concat(pieces.filter(({ stream }) => stream === name).map(({ data }) => data)).toString();
  return { code, stdout: text('stdout'), stderr: text('stderr') };
}

/** Starts a program as root that may end the guest before its start is reported. */
export async function provokeInGuest(agent: Agent, argv: readonly string[]): Promise<void> {
  const request = { user: 'root', argv, env: {}, cwd: '', defaultCwd: '', stdin: false, tag: '', killAfterMs: 0 };
  await agent.spawn({ ...request, config: new Uint8Array(0) }).catch(() => undefined);
}
