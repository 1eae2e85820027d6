import type { CheckResult } from './check.ts';

/** Capabilities the server uses, by their bit in `/proc/self/status` (capability.h). */
const CAPABILITIES: Readonly<Record<string, number>> = {
  CHOWN: 0,
  DAC_OVERRIDE: 1,
  KILL: 5,
  SETGID: 6,
  SETUID: 7,
  NET_ADMIN: 12,
  SYS_PTRACE: 19,
  SYS_ADMIN: 21,
};

/** Names of the server's capabilities that the `CapEff` line of a `/proc/PID/status` lacks. */
export function lackingCapabilities(status: string): readonly string[] {
  const effective = BigInt(`0x${/^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? '0'}`);
  return Object.entries(CAPABILITIES)
    .filter(([, bit]) => (effective & (1n << BigInt(bit))) === 0n)
    .map(([name]) => `CAP_${name}`);
}

export function checkPrivileges(host: { uid: number; status: string; sudo: boolean }): CheckResult {
  const name = 'privileges';
  const lacking = lackingCapabilities(host.status);
  if (lacking.length === 0)
    return { name, state: 'ok', detail: host.uid === 0 ? 'root' : `uid ${host.uid} with all capabilities` };
  if (host.uid === 0) {
    const remedy = 'run on a host or in a container that grants them';
    return { name, state: 'missing', detail: `root without ${lacking.join(', ')}`, remedy };
  }
  const detail = `uid ${host.uid}, and the server needs root (namespaces, taps, user ids)`;
  return host.sudo
    ? { name, state: 'warning', detail: `${detail}; sudo is there and will be asked` }
    : { name, state: 'missing', detail, remedy: 'run ./aenv as root, or install sudo' };
}
