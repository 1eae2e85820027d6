import { constants } from 'node:fs';
import { access, open, stat } from 'node:fs/promises';
import { PlatformError } from '@agentenv/core';
import type { HostArtifacts } from '../artifacts.ts';
import type { ProbeResult } from '../backend.ts';
import type { Exec } from '../exec.ts';

export type AcceleratorChoice = 'auto' | 'kvm' | 'tcg';

/** `/dev/kvm` as an unprivileged engine sees it. */
export type KvmAccess =
  | { readonly usable: true; readonly group: number | undefined }
  | { readonly usable: false; readonly reason: string };

const VERSION_DEADLINE_MS = 10_000;
const KVM = '/dev/kvm';

/** Version of the engine, e.g. `7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`. Rejects with `unavailable` when it cannot be run. */
export async function readEngineVersion(enginePath: string, exec: Exec): Promise<string> {
  let text: string;
  try {
    text = await exec({ argv: [enginePath, '--version'], deadlineMs: VERSION_DEADLINE_MS });
  } catch (cause) {
    throw new PlatformError('unavailable', `${enginePath} cannot be run`, { cause });
  }
  const version = /version (\S+(?: \([^)]*\))?)/.exec(text)?.[1];
  if (version === undefined) throw new PlatformError('unavailable', `${enginePath} does not say its version`);
  return version;
}

/** Whether an engine without privileges can use KVM, and the group it needs for that. */
export async function probeKvm(): Promise<KvmAccess> {
  try {
    const device = await open(KVM, 'r+');
    await device.close();
  } catch (caught) {
    const code = caught instanceof Error && 'code' in caught ? String(caught.code) : 'error';
    return { usable: false, reason: code === 'ENOENT' ? `there is no ${KVM}` : `${KVM} cannot be opened (${code})` };
  }
  const { mode, gid } = await stat(KVM);
  if ((mode & 0o006) === 0o006) return { usable: true, group: undefined };
  if ((mode & 0o060) === 0o060 && gid !== 0) return { usable: true, group: gid };
  return { usable: false, reason: `${KVM} is open to root only` };
}

async function missing(path: string, mode: number): Promise<boolean> {
  try {
    await access(path, mode);
    return false;
  } catch {
    return true;
  }
}

/** Everything the backend needs of this host, each lack with its remedy. */
export async function probeHost(options: {
  readonly artifacts: HostArtifacts;
  readonly enginePath: string;
  readonly accelerator: AcceleratorChoice;
  readonly exec: Exec;
  readonly uid: number | undefined;
  /** What control groups cannot do here. */
  readonly cgroupLimitation: string | undefined;
}): Promise<ProbeResult> {
  const { artifacts, enginePath, accelerator, exec } = options;
  const lacks: { readonly reason: string; readonly remedy: string; readonly fatal: boolean }[] = [];
  const lack = (reason: string, remedy: string, fatal = true): void => {
    lacks.push({ reason, remedy, fatal });
  };

  const kvm = await probeKvm();
  const accelerated = kvm.usable && accelerator !== 'tcg';
  if (options.uid !== 0) lack('the server does not run as root', 'start it with sudo');
  await readEngineVersion(enginePath, exec).catch((caught: unknown) => {
    lack(PlatformError.fromUnknown(caught).message, 'apt-get install qemu-system-x86');
  });
  for (const [program, debianPackage] of [
    ['/usr/bin/qemu-img', 'qemu-utils'],
    ['/sbin/mke2fs', 'e2fsprogs'],
  ] as const) {
    if (await missing(program, constants.X_OK)) lack(`${program} is missing`, `apt-get install ${debianPackage}`);
  }
  if (await missing('/dev/net/tun', constants.R_OK | constants.W_OK)) {
    lack('/dev/net/tun cannot be opened', 'modprobe tun, or pass the device to this container');
  }
  for (const { path } of [artifacts.kernel, artifacts.initramfs, artifacts.launcher, artifacts.rootfs.base]) {
    if (await missing(path, constants.R_OK)) lack(`${path} is missing`, 'run ./aenv setup');
  }
  if (!accelerated) {
    const why = kvm.usable ? 'emulation was chosen in the configuration' : kvm.reason;
    const fatal = accelerator === 'kvm';
    const remedy = kvm.usable
      ? 'set the accelerator to auto'
      : 'use a host with virtualisation, or one that passes it on to this machine';
    lack(fatal ? `KVM was asked for: ${why}` : `guests are emulated, several times slower: ${why}`, remedy, fatal);
  }
  if (options.cgroupLimitation !== undefined) {
    lack(options.cgroupLimitation, 'mount a writable cgroup file system', false);
  }
  return {
    usable: !lacks.some(({ fatal }) => fatal),
    reasons: lacks.map(({ reason }) => reason),
    remedies: lacks.map(({ remedy }) => remedy),
    isolation: 'vm',
    accelerator: accelerated ? 'kvm' : 'tcg',
    memorySnapshots: true,
    kernelArguments: true,
    speedClass: accelerated ? 'accelerated' : 'emulated',
  };
}
