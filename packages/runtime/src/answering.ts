import { PlatformError } from '@agentenv/core';

/** What goes to and comes from the other side: an answer has the number of the request it is to. */
export interface Numbered {
  readonly id: number;
}

/** Somebody beside this thread who gives each request one answer. */
export interface Answering<Request extends Numbered, Answer extends Numbered> extends AsyncDisposable {
  /** Requests without an answer yet. */
  readonly waiting: number;
  /** Has the other side running before it is needed. */
  prepare(): void;
  /**
   * Makes a request. Rejects with `internal` when the other side ends before its answer, `unavailable` after disposal. `tell`
   * sends more about it, which gets no answer of its own.
   */
  call(request: (id: number) => Request): {
    readonly answer: Promise<Answer>;
    tell(more: (id: number) => Request): void;
  };
  /** Makes a request whose answer may take as long as it wants: meanwhile it does not keep this process alive. */
  follow(request: (id: number) => Request): Promise<Answer>;
}

/** The other side while it runs. */
export interface OtherSide<Request> {
  send(request: Request): void;
  /** While true it keeps this process alive. */
  hold(needed: boolean): void;
  /** Resolves when it has ended. */
  end(): Promise<unknown>;
}

/** Starts the other side; it says when it answers, and once when it has ended, by itself or not. */
export type StartOtherSide<Request, Answer> = (
  onAnswer: (answer: Answer) => void,
  onEnd: (how: string, cause?: unknown) => void,
) => OtherSide<Request>;

/** Starts it with the first request, and again after it ended by itself. `called` is how errors call it, after `the`. */
export function createAnswering<Request extends Numbered, Answer extends Numbered>(
  called: string,
  start: StartOtherSide<Request, Answer>,
): Answering<Request, Answer> {
  const unanswered = new Map<number, PromiseWithResolvers<Answer>>();
  const followed = new Set<number>();
  let current: OtherSide<Request> | undefined;
  let nextId = 1;
  let disposed = false;

  function failAll(error: PlatformError): void {
    for (const { reject } of unanswered.values()) reject(error);
    unanswered.clear();
    followed.clear();
  }

  function running(): OtherSide<Request> {
    if (current !== undefined) return current;
    const started = start(
      (answer) => {
        unanswered.get(answer.id)?.resolve(answer);
        unanswered.delete(answer.id);
        followed.delete(answer.id);
        started.hold(unanswered.size > followed.size);
      },
      (how, cause) => {
        if (current !== started) return;
        current = undefined;
        failAll(new PlatformError('internal', `the ${called} ${how}`, { cause }));
      },
    );
    started.hold(false);
    current = started;
    return started;
  }

  function ask(request: (id: number) => Request, keep: (id: number) => void) {
    const reply = Promise.withResolvers<Answer>();
    if (disposed) {
      reply.reject(new PlatformError('unavailable', `the ${called} is closed`));
      return { answer: reply.promise, tell() {} };
    }
    const side = running();
    const id = nextId++;
    unanswered.set(id, reply);
    keep(id);
    side.hold(unanswered.size > followed.size);
    side.send(request(id));
    return { answer: reply.promise, tell: (more: (id: number) => Request) => side.send(more(id)) };
  }

  return {
    get waiting() {
      return unanswered.size;
    },
    prepare() {
      if (!disposed) running();
    },
    call: (request) => ask(request, () => undefined),
    follow: (request) => ask(request, (id) => followed.add(id)).answer,
    async [Symbol.asyncDispose]() {
      disposed = true;
      failAll(new PlatformError('unavailable', `the ${called} is closed`));
      await current?.end();
    },
  };
}
