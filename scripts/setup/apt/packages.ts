import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { join } from 'node:path';

/** A Debian package set-up or the server needs, recognised by a file it installs. */
export interface HostPackage {
  readonly name: string;
  /** A program in the PATH (or the system's sbin directories), or an absolute path. */
  readonly provides: string;
  readonly why: string;
}

const QEMU = {
  amd64: { name: 'qemu-system-x86', provides: 'qemu-system-x86_64' },
  arm64: { name: 'qemu-system-arm', provides: 'qemu-system-aarch64' },
} as const;

/** Everything a minimal Debian needs besides npm and git; `docs/dependencies.md` lists the same and a test compares. */
export function hostPackages(architecture: 'amd64' | 'arm64'): readonly HostPackage[] {
  return [
    { ...QEMU[architecture], why: 'runs the microVMs' },
    { name: 'qemu-utils', provides: 'qemu-img', why: 'creates the disks of sandboxes' },
    { name: 'e2fsprogs', provides: 'mke2fs', why: 'makes the ext4 images' },
    { name: 'gcc', provides: 'gcc', why: 'compiles the guest agent' },
    {
      name: 'libc6-dev',
      provides: '/usr/include/stdio.h',
      why: 'headers for the native and sanitizer builds of the guest agent',
    },
    { name: 'linux-libc-dev', provides: '/usr/include/linux/types.h', why: 'kernel headers the guest agent uses' },
    { name: 'musl-tools', provides: 'musl-gcc', why: 'links the guest agent statically' },
    { name: 'make', provides: 'make', why: 'builds the guest agent' },
    { name: 'kmod', provides: 'depmod', why: "indexes the guest kernel's modules" },
    { name: 'lz4', provides: 'lz4', why: 'unpacks the guest kernel (Linux 6.1)' },
    { name: 'zstd', provides: 'zstd', why: 'unpacks the guest kernel (Linux 6.12)' },
    { name: 'xz-utils', provides: 'xz', why: "unpacks the guest kernel's modules (Linux 6.12)" },
    { name: 'mmdebstrap', provides: 'mmdebstrap', why: 'builds the base root file system' },
    {
      name: 'debian-archive-keyring',
      provides: '/usr/share/keyrings/debian-archive-keyring.gpg',
      why: 'verifies its packages',
    },
    { name: 'util-linux', provides: 'unshare', why: 'private namespaces for that build; flock for the set-up lock' },
    { name: 'nftables', provides: 'nft', why: 'network policy of sandboxes' },
    { name: 'iproute2', provides: 'ip', why: 'network namespaces and taps' },
    {
      name: 'passt',
      provides: 'pasta',
      why: "carries sandboxes' traffic out without touching the host's own network settings",
    },
    { name: 'procps', provides: 'ps', why: 'lists processes in diagnoses' },
    {
      name: 'ca-certificates',
      provides: '/etc/ssl/certs/ca-certificates.crt',
      why: 'trust for npm and the base image',
    },
  ];
}

const SYSTEM_DIRECTORIES = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin'];

/** Absolute path of a program in `path` or the system's directories, or undefined. */
export async function findProgram(program: string, path: string | undefined): Promise<string | undefined> {
  const directories = [
    ...(path ?? '').split(':').filter((directory) => directory.startsWith('/')),
    ...SYSTEM_DIRECTORIES,
  ];
  for (const directory of directories) {
    const candidate = join(directory, program);
    if (await accessible(candidate, constants.X_OK)) return candidate;
  }
  return undefined;
}

/** The packages whose file is not there. */
export async function missingPackages(
  packages: readonly HostPackage[],
  path: string | undefined,
): Promise<readonly HostPackage[]> {
  const found = await Promise.all(
    packages.map(async ({ provides }) =>
      provides.startsWith('/')
        ? accessible(provides, constants.R_OK)
        : (await findProgram(provides, path)) !== undefined,
    ),
  );
  return packages.filter((_, index) => found[index] !== true);
}

async function accessible(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}
