import { type SandboxRecord, SILENT_LOG } from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import { openLedger } from '../sqlite-ledger.ts';

/**
 * A process that writes records as fast as it can and prints the number of each one the ledger has acknowledged; made to
 * be killed. Argument: path of the ledger.
 */
const path = process.argv[2];
if (path === undefined) throw new Error('usage: ledger-writer.ts PATH');
const ledger = await openLedger({ path, log: SILENT_LOG });
let next = 0;

async function writeOn(): Promise<never> {
  for (;;) {
    const number = next++;
    const id = `i${String(number).padStart(20, '0')}` as SandboxRecord['id'];
    await ledger.putSandbox(sandboxRecord({ id, timeoutSeconds: number }));
    // Every seventh is deleted again, and only then acknowledged as deleted.
    if (number % 7 === 6) {
      await ledger.deleteSandbox(id);
      process.stdout.write(`-${number}\n`);
    } else {
      process.stdout.write(`+${number}\n`);
    }
  }
}

await Promise.all(Array.from({ length: 8 }, writeOn));
