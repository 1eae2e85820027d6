import type { Agent, GuestProcess } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import { expect } from 'vitest';

const NO_CONFIG = new Uint8Array(0);

/** Reads a whole file of a guest. */
export async function readText(agent: Agent, path: string): Promise<string> {
  const { body } = await agent.readFile(path);
  const pieces: Uint8Array[] = [];
  for await (const piece of body) pieces.push(Uint8Array.from(piece));
  return Buffer.concat(pieces).toString();
}

/** Writes a whole file of a guest. */
export async function writeText(agent: Agent, path: string, text: string, uid = 1000): Promise<void> {
  async function* body() {
    yield Buffer.from(text);
  }
  await agent.writeFile({ path, uid, gid: uid, mode: 0o644, xattrs: new Map() }, body());
}

/** Starts a program as `user`. */
export async function spawn(agent: Agent, argv: readonly string[], stdin = false): Promise<GuestProcess> {
  return agent.spawn({
    user: 'user',
    argv,
    env: {},
    cwd: '',
    defaultCwd: '',
    stdin,
    tag: '',
    config: NO_CONFIG,
    killAfterMs: 0,
  });
}

/** Runs a program to its end. */
export async function run(
  agent: Agent,
  argv: readonly string[],
): Promise<{ readonly code: number; readonly stdout: string }> {
  const process = await spawn(agent, argv);
  const out = collectOutput(process);
  const exit = await process.exit;
  await process.outputEnd;
  return { code: exit.code, stdout: out.text() };
}

/** Everything a program has written so far. */
export function collectOutput(process: GuestProcess): { text(): string } {
  const pieces: Uint8Array[] = [];
  process.onOutput(({ data }) => {
    pieces.push(Uint8Array.from(data));
  });
  return { text: () => Buffer.concat(pieces).toString() };
}

/** The PlatformError a promise rejects with. */
export async function rejection(promise: Promise<unknown>): Promise<PlatformError> {
  try {
    await promise;
  } catch (error) {
    expect(error).toBeInstanceOf(PlatformError);
    return error as PlatformError;
  }
  throw new Error('expected a rejection');
}
