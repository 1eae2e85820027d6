import { ETC_BASHRC, ETC_PROFILE, HOME_BASHRC, HOME_PROFILE } from './login-files.ts';

/** Debian release of the base image. */
export const RELEASE = 'bookworm';

/** What `base` holds besides the required packages of a minimal Debian. */
export const PACKAGES = [
  'bash',
  'ca-certificates',
  'curl',
  'git',
  'iproute2',
  'kmod',
  // Node.js 26 is linked with it.
  'libatomic1',
  'ncurses-bin',
  'procps',
  'python-is-python3',
  'python3',
  'sudo',
] as const;

/** Options for dpkg while the tree is built: it is thrown away when that is interrupted, so nothing is flushed to the disk. */
export const DPKG_OPTIONS = ['force-unsafe-io'] as const;

/**
 * What dpkg leaves out in a sandbox: manuals, documentation and translations, but not the licences. The build itself
 * removes them afterwards (`PRUNED`): mmdebstrap would start a filter program for every package.
 */
const DPKG_EXCLUDES = `force-unsafe-io
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
`;

/** Directories emptied but for the named members, and for doc/PACKAGE the same one level down. */
export const PRUNED = [
  { directory: '/usr/share/man', keep: [] },
  { directory: '/usr/share/info', keep: [] },
  { directory: '/usr/share/locale', keep: ['locale.alias'] },
  { directory: '/usr/share/doc/*', keep: ['copyright'] },
] as const;

/** The account commands run as by default. */
export const USER = { name: 'user', uid: 1000, home: '/home/user' } as const;

/** A file the image gets besides its packages. */
export interface ImageFile {
  readonly path: string;
  readonly content: string;
  readonly mode: number;
  /** Owner and group; root unless given. */
  readonly owner?: number;
}

const HOME_FILES = [
  ['.profile', HOME_PROFILE],
  ['.bashrc', HOME_BASHRC],
] as const;

export const FILES: readonly ImageFile[] = [
  { path: '/etc/profile', content: ETC_PROFILE, mode: 0o644 },
  { path: '/etc/bash.bashrc', content: ETC_BASHRC, mode: 0o644 },
  ...HOME_FILES.flatMap(([name, content]): ImageFile[] => [
    { path: `/etc/skel/${name}`, content, mode: 0o644 },
    { path: `/root/${name}`, content, mode: 0o644 },
    { path: `${USER.home}/${name}`, content, mode: 0o644, owner: USER.uid },
  ]),
  { path: '/etc/dpkg/dpkg.cfg.d/aenv', content: DPKG_EXCLUDES, mode: 0o644 },
  { path: '/etc/default/locale', content: 'LANG=C.UTF-8\n', mode: 0o644 },
  { path: '/etc/environment', content: 'LANG=C.UTF-8\n', mode: 0o644 },
  { path: `/etc/sudoers.d/${USER.name}`, content: `${USER.name} ALL=(ALL:ALL) NOPASSWD: ALL\n`, mode: 0o440 },
  // The guest agent rewrites these three at every start; they must be plain files.
  { path: '/etc/hostname', content: 'sandbox\n', mode: 0o644 },
  { path: '/etc/hosts', content: '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n', mode: 0o644 },
  { path: '/etc/resolv.conf', content: '', mode: 0o644 },
  { path: '/etc/machine-id', content: '', mode: 0o444 },
  { path: '/etc/fstab', content: '', mode: 0o644 },
];

/** Removed after the packages are in: build leftovers, and login files that would start processes. */
export const REMOVED = [
  '/etc/skel/.bash_logout',
  '/root/.bash_logout',
  `${USER.home}/.bash_logout`,
  '/etc/motd',
  '/etc/apt/apt.conf.d/99mmdebstrap',
  '/etc/dpkg/dpkg.cfg.d/99mmdebstrap',
  '/var/log/bootstrap.log',
  '/var/log/dpkg.log',
  '/var/log/alternatives.log',
  '/var/log/apt',
  '/var/cache/ldconfig/aux-cache',
  '/var/cache/debconf',
] as const;

/** Where the guest agent's copy lives and the commands it answers to when it is called by their name. */
export const GUEST_COPY = '/usr/lib/aenv/aenv-guest';
export const GUEST_COMMANDS = [
  '/usr/sbin/poweroff',
  '/usr/sbin/reboot',
  '/usr/sbin/halt',
  '/usr/sbin/shutdown',
] as const;
