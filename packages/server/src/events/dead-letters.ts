import { appendFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock, Log } from '@agentenv/core';
import type { EventMessage } from './event-bus.ts';
import { createLineWriter } from './line-writer.ts';
import type { DeadLetter } from './webhook-queue.ts';

export const DEAD_LETTER_FILE = 'dead-letters.jsonl';

export interface DeadLetterLimits {
  /** Size at which a file is put aside, bytes. */
  readonly fileBytes: number;
  /** Files that were put aside and are kept. */
  readonly files: number;
  /** What may wait to be written, bytes. */
  readonly waitingBytes: number;
}

export const DEFAULT_DEAD_LETTER_LIMITS: DeadLetterLimits = {
  fileBytes: 8 * 1024 * 1024,
  files: 3,
  waitingBytes: 16 * 1024 * 1024,
};

/** Keeps the events that were given up, as lines of JSON for an operator to look at or to send again. */
export interface DeadLetters extends AsyncDisposable {
  /** Never waits and never fails; what cannot be written is an error in the log. */
  append(webhookId: string, message: EventMessage, dead: DeadLetter): void;
}

/** `directory` must be there. Files are `dead-letters.jsonl` and, older, `.1`, `.2` … */
export function createDeadLetters(deps: {
  readonly directory: string;
  readonly clock: Pick<Clock, 'now'>;
  readonly log: Log;
  readonly limits: DeadLetterLimits;
}): DeadLetters {
  const { clock, limits, log } = deps;
  const path = join(deps.directory, DEAD_LETTER_FILE);
  let size: number | undefined;

  async function sizeOf(file: string): Promise<number> {
    try {
      return (await stat(file)).size;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return 0;
      throw error;
    }
  }

  async function putAside(): Promise<void> {
    if (limits.files === 0) await rm(path, { force: true });
    for (let number = limits.files - 1; number >= 0; number--) {
      const from = number === 0 ? path : `${path}.${number}`;
      if ((await sizeOf(from)) > 0) await rename(from, `${path}.${number + 1}`);
    }
    size = 0;
  }

  const writer = createLineWriter({
    maxBytes: limits.waitingBytes,
    onDropped: (count, error) =>
      log.error({ count, err: error }, 'events that were given up could not be written down'),
    async write(lines) {
      size ??= await sizeOf(path);
      for (const line of lines) {
        const bytes = Buffer.byteLength(line);
        if (size > 0 && size + bytes > limits.fileBytes) await putAside();
        await appendFile(path, line, { mode: 0o600 });
        size += bytes;
      }
    },
  });

  return {
    append(webhookId, message, { reason, attempts, lastError }) {
      const about = {
        at: new Date(clock.now()).toISOString(),
        webhook_id: webhookId,
        ...{ reason, attempts },
        ...(lastError === undefined ? {} : { last_error: lastError }),
      };
      writer.append(`${JSON.stringify(about).slice(0, -1)},"event":${message.json}}`);
    },
    [Symbol.asyncDispose]: () => writer[Symbol.asyncDispose](),
  };
}
