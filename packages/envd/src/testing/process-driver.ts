import type { Frame } from './connect-frames.ts';
import { type RpcClient, type ServerStream, summarise } from './rpc-client.ts';

export const START = 'process.Process/Start';
export const CONNECT = 'process.Process/Connect';

export function shell(script: string): { readonly cmd: string; readonly args: readonly string[] } {
  return { cmd: '/bin/sh', args: ['-c', script] };
}

/** The header that chooses the user of a call. */
export function basic(user: string): { readonly authorization: string } {
  return { authorization: `Basic ${btoa(`${user}:`)}` };
}

/** Output of a data frame of stdout or a terminal, empty for every other frame. */
export function stdoutOf({ json }: Frame): string {
  const event = json.event as { data?: { stdout?: string; pty?: string } } | undefined;
  return Buffer.from(event?.data?.stdout ?? event?.data?.pty ?? '', 'base64').toString();
}

/** Reads until the output so far contains the text. */
export async function untilOutput(stream: ServerStream, text: string): Promise<string> {
  let seen = '';
  await stream.until((frame) => {
    seen += stdoutOf(frame);
    return seen.includes(text);
  });
  return seen;
}

/** What is left of a stream whose start event was read. */
export async function finish(stream: ServerStream) {
  return summarise(await stream.rest());
}

export interface ProcessDriver {
  /** Starts a process and reads its stream to the end. */
  run(request: Record<string, unknown>, headers?: Record<string, string>): Promise<ReturnType<typeof summarise>>;
  /** Starts a process and reads its start event. */
  start(
    request: Record<string, unknown>,
    headers?: Record<string, string>,
  ): Promise<{ readonly stream: ServerStream; readonly pid: number }>;
  /** Whether a process of the guest takes signals; a zombie would. */
  alive(pid: number): Promise<boolean>;
  kill(pid: number): ReturnType<RpcClient['unary']>;
}

export function createProcessDriver(rpc: RpcClient): ProcessDriver {
  const driver: ProcessDriver = {
    async run(request, headers = {}) {
      await using stream = await rpc.stream(START, request, headers);
      return summarise(await stream.rest());
    },
    async start(request, headers = {}) {
      const stream = await rpc.stream(START, request, headers);
      const first = await stream.next();
      const event = first?.json.event as { start?: { pid: number } } | undefined;
      if (event?.start === undefined) throw new Error(`no start event: ${JSON.stringify(first)}`);
      return { stream, pid: event.start.pid };
    },
    async alive(pid) {
      const script = `kill -0 ${pid} 2>/dev/null && echo yes`;
      return (await driver.run({ process: shell(script) }, basic('root'))).stdout === 'yes\n';
    },
    kill: (pid) => rpc.unary('process.Process/SendSignal', { process: { pid }, signal: 'SIGNAL_SIGKILL' }),
  };
  return driver;
}
