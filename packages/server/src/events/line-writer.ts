/**
 * Writes lines in batches, one after another; whoever gives one never waits. More than `maxBytes` that have not been
 * written are dropped, and so is a batch that cannot be written; both are told.
 */
export interface LineWriter extends AsyncDisposable {
  append(line: string): void;
  /** Resolves when everything given so far has been written or dropped. */
  flushed(): Promise<void>;
}

export function createLineWriter(deps: {
  /** Each line ends with a line feed. */
  readonly write: (lines: readonly string[]) => Promise<void>;
  readonly maxBytes: number;
  readonly onDropped: (lines: number, error: unknown) => void;
}): LineWriter {
  let waiting: string[] = [];
  let bytes = 0;
  let writing: Promise<void> | undefined;

  async function work(): Promise<void> {
    while (waiting.length > 0) {
      const batch = waiting;
      waiting = [];
      bytes = 0;
      try {
        await deps.write(batch);
      } catch (error) {
        deps.onDropped(batch.length, error);
      }
    }
    writing = undefined;
  }

  const flushed = async (): Promise<void> => {
    while (writing !== undefined) await writing;
  };

  return {
    append(line) {
      const size = Buffer.byteLength(line) + 1;
      if (bytes + size > deps.maxBytes) {
        deps.onDropped(1, new Error('too much is waiting to be written'));
        return;
      }
      waiting.push(`${line}\n`);
      bytes += size;
      writing ??= Promise.resolve().then(work);
    },
    flushed,
    [Symbol.asyncDispose]: flushed,
  };
}
