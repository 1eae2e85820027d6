import { existsSync } from 'node:fs';
import { cpus, release, totalmem } from 'node:os';

/** The machine in one line, so that no figure travels without it. */
export function describeHost(): string {
  const [first] = cpus();
  return [
    `${cpus().length} × ${first?.model ?? 'unknown CPU'}`,
    `${Math.round(totalmem() / 2 ** 30)} GiB`,
    `Linux ${release()}`,
    existsSync('/dev/kvm') ? '/dev/kvm present' : 'no KVM (software emulation)',
    `Node ${process.versions.node}`,
  ].join(' · ');
}
