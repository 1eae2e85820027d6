import { createHash } from 'node:crypto';
import { basename } from 'node:path';
import { PlatformError, type Resources } from '@agentenv/core';
import type { GuestAddressing } from '../network/slot.ts';
import { diskLayerName } from './snapshot-files.ts';

/** How guest instructions run. `tscKhz` is the rate of the host's time stamp counter, which an emulated guest reads directly. */
export type Accelerator =
  | {
      readonly kind: 'kvm';
      readonly cpuModel: string;
      /** Group that may open `/dev/kvm`; undefined when everybody may. */
      readonly group: number | undefined;
    }
  | { readonly kind: 'tcg'; readonly tscKhz: number };

/**
 * Descriptors the launcher opens for the engine. Files are reached as `/proc/self/fd/N`, so nothing above them has to
 * be traversable by the engine's uid and every argument is the same for every instance.
 */
export const ENGINE_FD = {
  tap: 3,
  deviceState: 4,
  runtime: 5,
  instance: 6,
  memory: 7,
  rootfs: 8,
  disk: 9,
  kernel: 10,
  initramfs: 11,
  /** Directory of root's with the frozen layers of the disk; those that are added to a started engine come there too. */
  layers: 12,
} as const;

/**
 * Frozen layers below the writable disk at most, should they not be merged for long. An engine names an image with all that
 * lies below it, some 106 bytes for each, and cuts such a name at 4096 bytes: with more than 36 nobody could read it.
 */
export const MAX_DISK_LAYERS = 32;

export const QMP_SOCKET = 'qmp.sock';
export const AGENT_SOCKET = 'agent.sock';
export const UPPER_IMAGE = 'upper.qcow2';
export const DEVICE_STATE = 'devices.state';
export const AGENT_PORT = 'aenv.agent';
export const CONSOLE_DEVICE = 'console';
export const UPPER_NODE = 'upper';
export const UPPER_FILE_NODE = 'upper-file';
/** The raw image below all layers of the disk. */
export const DISK_NODE = 'disk';

/** Block node of an image of the writable disk, wherever it lies. */
export const nodeOf = (image: string): string => basename(image, '.qcow2');
/** Block node of the file of such a node. */
export const fileNodeOf = (node: string): string => `${node}-file`;
/** Bytes of console text kept in the engine; older text is overwritten. A power of two. */
export const CONSOLE_BYTES = 65_536;

/** Block devices held free for drives and volumes (microvm takes 24 virtio devices in all). */
export const PLACEHOLDER_DRIVES = 8;
const PLACEHOLDER_BYTES = 1 << 20;
/** MiB of translated code an emulated guest may keep; the default grows to 1 GiB. */
export const TRANSLATION_CACHE_MIB = 128;

/** A file by a descriptor of the engine, or one in the directory behind it. */
export const fdPath = (descriptor: number, name?: string): string =>
  name === undefined ? `/proc/self/fd/${descriptor}` : `/proc/self/fd/${descriptor}/${name}`;

/** What the engine does at start: boot a kernel, or wait for a captured device state. */
export type EngineStart = { readonly kind: 'boot'; readonly commandLine: string } | { readonly kind: 'incoming' };

export interface EngineSpec {
  /** Unique per engine process and visible in its arguments: how leftovers are found. */
  readonly name: string;
  readonly uuid: string;
  readonly accelerator: Accelerator;
  readonly resources: Pick<Resources, 'vcpus' | 'memoryMB'>;
  readonly mac: string;
  readonly start: EngineStart;
  /** Frozen layers between the disk and its overlay; none unless given. Devices do not depend on them. */
  readonly diskLayers?: number;
}

/** Longest command line a kernel of this architecture reads, bytes. */
const MAX_COMMAND_LINE = 2047;

/** Kernel arguments; `aenv.*` are read by the guest agent. `extra` comes last; too much of it: `invalid_argument`. */
export function kernelCommandLine(accelerator: Accelerator, guest: GuestAddressing, extra = ''): string {
  const commandLine = [
    'console=ttyS0 quiet panic=-1 reboot=t',
    // Under emulation the guest reads the host's counter; calibrating it against the emulated timer fails under load.
    ...(accelerator.kind === 'tcg'
      ? [`tsc_early_khz=${accelerator.tscKhz} lpj=${accelerator.tscKhz * 4} no_timer_check tsc=reliable`]
      : []),
    'cryptomgr.notests random.trust_cpu=1 mitigations=off audit=0 apparmor=0',
    // Idle guests wake less often, also for work left over from the boot of the template, and a program that touches a few
    // pages does not get two megabytes of its own.
    'nowatchdog deferred_probe_timeout=0 transparent_hugepage=madvise',
    `aenv.root=/dev/vda aenv.upper=/dev/vdb aenv.ip4=${guest.ipv4} aenv.gw4=${guest.gatewayIpv4}`,
    `aenv.ip6=${guest.ipv6} aenv.gw6=${guest.gatewayIpv6}`,
    ...(extra === '' ? [] : [extra]),
  ].join(' ');
  if (Buffer.byteLength(commandLine) > MAX_COMMAND_LINE) {
    const room = MAX_COMMAND_LINE - Buffer.byteLength(commandLine) + Buffer.byteLength(extra);
    throw new PlatformError('invalid_argument', `extra kernel arguments are longer than ${room} bytes`);
  }
  return commandLine;
}

/**
 * All features that can be emulated, but for "enhanced rep movsb": kernels and C libraries that see it copy byte by byte,
 * and each byte is a turn through the emulator.
 */
const EMULATED_CPU = 'max,-erms';

function accelerationArguments(accelerator: Accelerator): string[] {
  return accelerator.kind === 'kvm'
    ? ['-accel', 'kvm', '-cpu', 'host']
    : ['-accel', `tcg,thread=multi,tb-size=${TRANSLATION_CACHE_MIB}`, '-cpu', EMULATED_CPU];
}

function startArguments(start: EngineStart): string[] {
  // The capture remembers that its guest ran; stopped it stays until it is told to go on.
  if (start.kind === 'incoming') return ['-S', '-incoming', 'defer'];
  return ['-kernel', fdPath(ENGINE_FD.kernel), '-initrd', fdPath(ENGINE_FD.initramfs), '-append', start.commandLine];
}

/** The node on which the next one lies when there are `layers` of them. */
const topOf = (layers: number): string => (layers === 0 ? DISK_NODE : nodeOf(diskLayerName(layers - 1)));

function diskArguments(layers: number): string[] {
  const reported = 'werror=report,rerror=report';
  const frozen = Array.from({ length: layers }, (_, index) => {
    const name = diskLayerName(index);
    const node = nodeOf(name);
    const file = `file.driver=file,file.node-name=${fileNodeOf(node)},file.filename=${fdPath(ENGINE_FD.layers, name)},file.read-only=on`;
    return ['-blockdev', `driver=qcow2,node-name=${node},${file},backing=${topOf(index)},read-only=on`];
  }).flat();
  return [
    '-blockdev',
    `driver=file,node-name=rootfs-file,filename=${fdPath(ENGINE_FD.rootfs)},read-only=on`,
    '-blockdev',
    'driver=raw,node-name=rootfs,file=rootfs-file,read-only=on',
    '-device',
    `virtio-blk-device,id=vda,drive=rootfs,${reported}`,
    '-blockdev',
    `driver=file,node-name=${DISK_NODE}-file,filename=${fdPath(ENGINE_FD.disk)},read-only=on`,
    '-blockdev',
    `driver=raw,node-name=${DISK_NODE},file=${DISK_NODE}-file,read-only=on`,
    ...frozen,
    // A guest's flush need not reach the platter: what must survive the host is written and synced by a capture.
    '-blockdev',
    `driver=file,node-name=${UPPER_FILE_NODE},filename=${fdPath(ENGINE_FD.instance, UPPER_IMAGE)},discard=unmap,cache.no-flush=on`,
    '-blockdev',
    `driver=qcow2,node-name=${UPPER_NODE},file=${UPPER_FILE_NODE},backing=${topOf(layers)},discard=unmap,cache.no-flush=on`,
    '-device',
    `virtio-blk-device,id=vdb,drive=${UPPER_NODE},${reported}`,
  ];
}

function placeholderArguments(): string[] {
  return Array.from({ length: PLACEHOLDER_DRIVES }, (_, index) => [
    '-blockdev',
    `driver=null-co,node-name=free${index},size=${PLACEHOLDER_BYTES},read-zeroes=on`,
    '-device',
    `virtio-blk-device,id=drive${index},drive=free${index},werror=report,rerror=report`,
  ]).flat();
}

/** The engine's complete arguments; with `name` and `uuid` aside they are the same for every instance of a kind. */
export function engineArguments(spec: EngineSpec): readonly string[] {
  const { vcpus, memoryMB } = spec.resources;
  return [
    '-name',
    `guest=${spec.name},debug-threads=on`,
    '-uuid',
    spec.uuid,
    '-nodefaults',
    '-no-user-config',
    '-display',
    'none',
    '-msg',
    'timestamp=off',
    // A guest that ends stays as a stopped engine, so that its last words can be read before it is killed.
    '-action',
    'reboot=shutdown,shutdown=pause,panic=pause',
    '-machine',
    'microvm,memory-backend=mem,suppress-vmdesc=on,mem-merge=off,dump-guest-core=off',
    ...accelerationArguments(spec.accelerator),
    '-smp',
    `cpus=${vcpus},maxcpus=${vcpus}`,
    '-m',
    `${memoryMB}M`,
    '-object',
    `memory-backend-file,id=mem,size=${memoryMB}M,mem-path=${fdPath(ENGINE_FD.memory)},share=off`,
    ...startArguments(spec.start),
    '-chardev',
    `socket,id=qmp,path=${fdPath(ENGINE_FD.runtime, QMP_SOCKET)},server=on,wait=off`,
    '-mon',
    'chardev=qmp,mode=control',
    '-device',
    'virtio-serial-device,id=serial,max_ports=2',
    '-chardev',
    `socket,id=agent,path=${fdPath(ENGINE_FD.runtime, AGENT_SOCKET)},server=on,wait=off`,
    '-device',
    `virtserialport,chardev=agent,name=${AGENT_PORT}`,
    ...diskArguments(spec.diskLayers ?? 0),
    ...placeholderArguments(),
    '-netdev',
    `tap,id=net,fd=${ENGINE_FD.tap}`,
    '-device',
    `virtio-net-device,netdev=net,mac=${spec.mac}`,
    '-object',
    'rng-builtin,id=rng',
    '-device',
    'virtio-rng-device,rng=rng',
    '-chardev',
    `ringbuf,id=${CONSOLE_DEVICE},size=${CONSOLE_BYTES}`,
    '-serial',
    `chardev:${CONSOLE_DEVICE}`,
    // The captured device state carries no configuration section.
    '-global',
    'migration.send-configuration=off',
    '-sandbox',
    'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
  ];
}

/** What has to match between the engine that captured and the one that restores. */
export function engineFingerprint(facts: {
  readonly engineVersion: string;
  readonly accelerator: Accelerator;
  readonly kernelDigest: string;
  readonly mac: string;
}): Readonly<Record<string, string>> {
  const { accelerator } = facts;
  const layout = engineArguments({
    name: '',
    uuid: '',
    accelerator,
    resources: { vcpus: 0, memoryMB: 0 },
    mac: facts.mac,
    start: { kind: 'incoming' },
  });
  return {
    engine: `qemu ${facts.engineVersion}`,
    machine: 'microvm',
    accelerator: accelerator.kind,
    cpu: accelerator.kind === 'kvm' ? `host (${accelerator.cpuModel})` : `${EMULATED_CPU} tsc=${accelerator.tscKhz}kHz`,
    devices: createHash('sha256').update(layout.join('\0')).digest('hex').slice(0, 16),
    kernel: facts.kernelDigest,
  };
}
