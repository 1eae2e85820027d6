import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import type { Clock } from '@agentenv/core';
import { connectQmp } from '../qemu/engine.ts';
import { ENGINE_FD, engineArguments } from '../qemu/qemu-args.ts';
import type { Qmp } from '../qemu/qmp.ts';

export interface DiskEngineRequest {
  readonly sockets: string;
  readonly instance: string;
  readonly layerDirectory: string;
  /** Raw images. */
  readonly rootfs: string;
  readonly base: string;
  readonly diskLayers: number;
}

/** A real engine with the disks of every engine and nothing else; its guest never runs, its disk is written to by hand. */
export interface DiskEngine extends AsyncDisposable {
  readonly pid: number;
  readonly qmp: Qmp;
  /** Connects anew, as another server does. */
  reconnect(): Promise<Qmp>;
  /** Does what a guest does with its writable disk: a command of `qemu-io`. */
  io(command: string): Promise<void>;
}

/** The arguments of disks alone, as the backend has them. */
function diskArguments(diskLayers: number): readonly string[] {
  const spec = { name: 'disk', uuid: crypto.randomUUID(), accelerator: { kind: 'tcg', tscKhz: 1 }, mac: '' } as const;
  const all = engineArguments({
    ...{ ...spec, resources: { vcpus: 1, memoryMB: 16 }, start: { kind: 'incoming' }, diskLayers },
  });
  return all.flatMap((argument, index) => {
    const option = all[index - 1];
    const wanted = option === '-blockdev' || (option === '-device' && argument.startsWith('virtio-blk-device'));
    return wanted && option !== undefined ? [option, argument] : [];
  });
}

export async function startDiskEngine(clock: Clock, request: DiskEngineRequest): Promise<DiskEngine> {
  const { sockets, instance, layerDirectory, rootfs, base, diskLayers } = request;
  const files = new Map<number, string>([
    [ENGINE_FD.instance, instance],
    [ENGINE_FD.layers, layerDirectory],
    [ENGINE_FD.rootfs, rootfs],
    [ENGINE_FD.disk, base],
  ]);
  const socket = join(sockets, 'qmp.sock');
  const opened: number[] = [];
  const stdio = Array.from({ length: Math.max(...files.keys()) + 1 }, (_, descriptor) => {
    const path = files.get(descriptor);
    if (path === undefined) return descriptor === 2 ? 'inherit' : 'ignore';
    const fd = openSync(path, 'r');
    opened.push(fd);
    return fd;
  });
  const machine = ['-nodefaults', '-no-user-config', '-display', 'none', '-machine', 'microvm', '-m', '16M', '-S'];
  const control = ['-qmp', `unix:${socket},server=on,wait=off`];
  const child: ChildProcess = spawn('qemu-system-x86_64', [...machine, ...control, ...diskArguments(diskLayers)], {
    stdio,
  });
  for (const fd of opened) closeSync(fd);
  let qmp = await connectQmp(socket, clock, undefined);
  return {
    pid: Number(child.pid),
    get qmp() {
      return qmp;
    },
    async reconnect() {
      await qmp[Symbol.asyncDispose]();
      qmp = await connectQmp(socket, clock, undefined);
      return qmp;
    },
    async io(command) {
      const answer = await qmp.execute('human-monitor-command', { 'command-line': `qemu-io -d vdb "${command}"` });
      if (/error|fail|invalid/i.test(String(answer))) throw new Error(`${command}: ${String(answer)}`);
    },
    async [Symbol.asyncDispose]() {
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
      await qmp[Symbol.asyncDispose]();
    },
  };
}

/** How `qemu-img` names the disk that these qcow2 layers, oldest first, show upon a raw base. */
export function shownDisk(base: string, layers: readonly string[]): string {
  let below: object = { driver: 'raw', file: { driver: 'file', filename: base } };
  for (const filename of layers) below = { driver: 'qcow2', file: { driver: 'file', filename }, backing: below };
  return `json:${JSON.stringify(below)}`;
}
