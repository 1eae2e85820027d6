import { Sandbox as SandboxCurrent } from 'e2b';
import { Sandbox as SandboxOld } from 'e2b-2-10';

/** The published clients every end-to-end chapter runs with; the old one still uses the v1 routes. */
export const CLIENTS = [
  { version: 'e2b@2.51.0', old: false, Sandbox: SandboxCurrent },
  // The part of the interface the chapters use is the same in both; the newer types describe it.
  { version: 'e2b@2.10.4', old: true, Sandbox: SandboxOld as unknown as typeof SandboxCurrent },
] as const;
