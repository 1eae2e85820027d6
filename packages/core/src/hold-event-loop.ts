/**
 * Keeps the process alive until disposed. Timers of the clock and handles of detached engines deliberately do not, so
 * work that waits for nothing else (before a server listens, after it stopped to) would be cut off in the middle.
 */
export function holdEventLoop(): Disposable {
  const { port1 } = new MessageChannel();
  port1.ref();
  port1.onmessage = () => undefined;
  return {
    [Symbol.dispose]() {
      port1.close();
    },
  };
}
