import type { ProcessOutput } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import type { ProcessEnd } from './process-end.ts';
import { createSubscriber, type Subscriber } from './subscriber.ts';

/** How far a subscriber may be behind while another one keeps up, bytes (the slow-subscriber rule). */
const MAX_BEHIND_BYTES = 1024 * 1024;
const MAX_SUBSCRIBERS = 64;

/**
 * Spreads the output of one process over its subscribers. Without any it is dropped; a single one slows the process
 * down; of several the fastest sets the pace, and one that is more than 1 MiB behind it is ended.
 */
export interface OutputHub {
  /** Throws `capacity` when there are too many. After the end it gets just that. */
  subscribe(): Subscriber;
  unsubscribe(subscriber: Subscriber): void;
  /** Undefined, or a promise that settles when more may follow. */
  push(output: ProcessOutput): Promise<void> | undefined;
  end(end: ProcessEnd): void;
  fail(error: Error): void;
}

export function createOutputHub(): OutputHub {
  const subscribers = new Set<Subscriber>();
  let ending: ProcessEnd | undefined;
  let failure: Error | undefined;
  let paused: PromiseWithResolvers<void> | undefined;

  function resume(): void {
    paused?.resolve();
    paused = undefined;
  }

  function dropSlow(): void {
    for (const subscriber of subscribers) {
      if (subscriber.waiting <= MAX_BEHIND_BYTES) continue;
      subscribers.delete(subscriber);
      subscriber.fail(
        new PlatformError('capacity', 'this stream is more than 1 MiB behind another reader of the same process'),
      );
    }
  }

  return {
    subscribe() {
      if (subscribers.size >= MAX_SUBSCRIBERS) {
        throw new PlatformError('capacity', `the process already has ${MAX_SUBSCRIBERS} readers, the limit`);
      }
      const subscriber = createSubscriber(resume);
      if (failure !== undefined) subscriber.fail(failure);
      if (ending !== undefined) subscriber.end(ending);
      subscribers.add(subscriber);
      resume();
      return subscriber;
    },
    unsubscribe(subscriber) {
      subscribers.delete(subscriber);
      resume();
    },
    push(output) {
      if (subscribers.size === 0) return undefined;
      let keepingUp = false;
      for (const subscriber of subscribers) {
        if (subscriber.hasRoom) keepingUp = true;
        subscriber.push(output);
      }
      if (keepingUp && subscribers.size > 1) dropSlow();
      for (const subscriber of subscribers) if (subscriber.hasRoom) return undefined;
      paused ??= Promise.withResolvers();
      return paused.promise;
    },
    end(end) {
      ending ??= end;
      for (const subscriber of subscribers) subscriber.end(end);
    },
    fail(error) {
      failure ??= error;
      for (const subscriber of subscribers) subscriber.fail(error);
      resume();
    },
  };
}
