import type { Clock, Log } from '@agentenv/core';
import type { RuntimeEnd, RuntimeEndReason } from '../backend.ts';
import { CONSOLE_BYTES, CONSOLE_DEVICE } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import type { QmpEvent } from './qmp-events.ts';

const CONSOLE_DEADLINE_MS = 500;
const EXIT_GRACE_MS = 200;
const PANIC = /Kernel panic - not syncing: ([^\r\n]{0,200})/;

/** What an engine's event says about its guest; undefined when it goes on. */
export function endOfEvent(event: QmpEvent): RuntimeEndReason | undefined {
  if (event.name === 'GUEST_PANICKED') return 'guest-panic';
  if (event.name !== 'SHUTDOWN') return undefined;
  if (!event.byGuest) return 'engine-died';
  if (event.reason === 'guest-panic') return 'guest-panic';
  return event.reason === 'guest-reset' ? 'guest-reboot' : 'guest-poweroff';
}

/**
 * A kernel that panics restarts the machine, so the engine reports a reset for a panic and for `reboot` alike;
 * what the kernel wrote last on its console tells them apart.
 */
export function refineEnd(reason: RuntimeEndReason, consoleText: string): RuntimeEnd {
  const panic = PANIC.exec(consoleText)?.[1];
  if (reason === 'guest-panic' || (reason === 'guest-reboot' && panic !== undefined)) {
    return { reason: 'guest-panic', detail: `the guest's kernel panicked: ${panic ?? 'no message'}` };
  }
  if (reason === 'guest-reboot') return { reason, detail: 'the guest restarted its machine' };
  return { reason, detail: 'the guest switched its machine off' };
}

async function readConsole(qmp: Qmp): Promise<string> {
  try {
    const text = await qmp.execute(
      'ringbuf-read',
      { device: CONSOLE_DEVICE, size: CONSOLE_BYTES },
      { deadlineMs: CONSOLE_DEADLINE_MS },
    );
    return typeof text === 'string' ? text : '';
  } catch {
    // Without the text a panic is reported as a restart; the sandbox ends either way.
    return '';
  }
}

/**
 * Resolves when the engine or its guest can no longer run: the guest's own end, the end of the control socket, or the end
 * of the process, whichever is seen first. Errors of a disk go to the guest and are logged here.
 */
export function watchEnd(options: {
  readonly qmp: Qmp;
  /** Resolves when the process is gone, with one phrase. */
  readonly exited: Promise<string>;
  readonly tail: () => string;
  readonly clock: Clock;
  readonly log: Log;
}): Promise<RuntimeEnd> {
  const { qmp, exited, tail, clock, log } = options;
  const { promise, resolve } = Promise.withResolvers<RuntimeEnd>();
  const reportDiskError = limitedDiskErrors(clock, log);
  let guestEnded = false;

  qmp.subscribe((event) => {
    if (event.name === 'BLOCK_IO_ERROR') reportDiskError(event);
    const reason = endOfEvent(event);
    if (reason === undefined || guestEnded) return;
    guestEnded = true;
    if (reason === 'engine-died') resolve({ reason, detail: 'the engine was told to end' });
    else void readConsole(qmp).then((text) => resolve(refineEnd(reason, text)));
  });

  const died = (how: string): void => {
    if (guestEnded) return;
    const words = tail();
    const detail = words === '' ? how : `${how}: ${words}`;
    resolve({ reason: 'engine-died', detail: `the engine is gone (${detail})` });
  };
  void exited.then(died);
  // The process itself, when it is our child, says better how it ended.
  void qmp.closed.then(() => clock.timer(EXIT_GRACE_MS, () => died('its control socket closed')));
  return promise;
}

const DISK_ERROR_LOG_MS = 10_000;

/** A full disk fails every write of a guest: one line per interval, with the number of errors since the last. */
function limitedDiskErrors(clock: Clock, log: Log): (event: QmpEvent & { name: 'BLOCK_IO_ERROR' }) => void {
  let next = Number.NEGATIVE_INFINITY;
  let count = 0;
  return ({ node, operation, reason }) => {
    count++;
    if (clock.monotonic() < next) return;
    next = clock.monotonic() + DISK_ERROR_LOG_MS;
    log.error({ node, operation, reason, count }, 'a disk of the sandbox failed; the guest got the error');
    count = 0;
  };
}
