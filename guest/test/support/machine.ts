import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Agent, createAgent, createUnixSocketEndpoint } from '@agentenv/agent';
import { buildGuest, testClock } from '@agentenv/agent/testing';
import { SILENT_LOG } from '@agentenv/core';
import { loadArtifacts } from '@agentenv/runtime';
import { repositoryPaths } from '../../../scripts/lib/paths.ts';
import { cpioArchive, S_IFREG } from '../../../scripts/setup/cpio.ts';

const run = promisify(execFile);
const BOOT_TIMEOUT_MS = 120_000;
/** Of the disk for everything written: small, so that a test can fill it. */
const DISK_BYTES = 64 * 1024 * 1024;
const MEMORY_MB = 512;

/** Away from those of the archive before it, which init replaces. */
const FIRST_INODE = 90_000;

/** A microVM with the agent of this checkout as its init, on what set-up prepared; nothing of the product around it. */
export interface Machine extends AsyncDisposable {
  readonly agent: Agent;
  /** Resolves with the engine's exit code. */
  readonly ended: Promise<number | null>;
  /** What the kernel and init wrote to the serial console. */
  console(): Promise<string>;
}

async function kernelCommandLine(): Promise<string> {
  const cpu = await readFile('/proc/cpuinfo', 'utf8');
  const khz = Math.round(Number(/^cpu MHz\s*:\s*([\d.]+)/m.exec(cpu)?.[1] ?? '2000') * 1000);
  return [
    'console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=1 mitigations=off cryptomgr.notests',
    `tsc_early_khz=${khz} lpj=${khz * 4} no_timer_check tsc=reliable`,
    'aenv.root=/dev/vda aenv.fstype=ext4 aenv.upper=/dev/vdb',
    'aenv.ip4=169.254.0.22/30 aenv.gw4=169.254.0.21 aenv.ip6=fd00:ae::2/64 aenv.gw6=fd00:ae::1',
  ].join(' ');
}

export async function startMachine(): Promise<Machine> {
  const artifacts = await loadArtifacts(repositoryPaths().artifacts);
  const directory = await mkdtemp(join(tmpdir(), 'aenv-vm-'));
  const path = (name: string): string => join(directory, name);
  const init = { path: 'init', mode: S_IFREG | 0o755, data: await readFile(await buildGuest()) };
  await writeFile(path('initramfs'), [await readFile(artifacts.initramfs.path), cpioArchive([init], FIRST_INODE)]);
  await writeFile(path('upper'), '');
  await truncate(path('upper'), DISK_BYTES);
  await run('mkfs.ext4', ['-q', path('upper')]);

  const engine = spawn(
    'qemu-system-x86_64',
    [
      ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-machine', 'microvm'],
      ...['-accel', 'tcg,thread=multi,tb-size=128', '-cpu', 'max', '-smp', '2', '-m', String(MEMORY_MB)],
      ...['-kernel', artifacts.kernel.path, '-initrd', path('initramfs'), '-append', await kernelCommandLine()],
      ...['-device', 'virtio-serial-device,max_ports=2', '-device', 'virtserialport,chardev=agent,name=aenv.agent'],
      ...['-chardev', `socket,id=agent,path=${path('agent.sock')},server=on,wait=off`],
      ...['-drive', `if=none,id=root,file=${artifacts.rootfs.base.path},format=raw,readonly=on`],
      ...['-drive', `if=none,id=upper,file=${path('upper')},format=raw`],
      ...['-device', 'virtio-blk-device,drive=root', '-device', 'virtio-blk-device,drive=upper'],
      ...['-netdev', 'user,id=net,restrict=on', '-device', 'virtio-net-device,netdev=net'],
      ...['-serial', `file:${path('console')}`],
    ],
    { stdio: 'ignore' },
  );
  const ended = new Promise<number | null>((resolve) => engine.once('exit', (code) => resolve(code)));

  async function end(): Promise<void> {
    engine.kill('SIGKILL');
    await ended;
    await rm(directory, { recursive: true, force: true });
  }

  try {
    const endpoint = createUnixSocketEndpoint(path('agent.sock'), { clock: testClock });
    const socket = await endpoint.connect(AbortSignal.timeout(BOOT_TIMEOUT_MS));
    const agent = await createAgent({
      socket,
      key: new Uint8Array(16),
      clock: testClock,
      rng: { bytes: (length) => randomBytes(length) },
      log: SILENT_LOG,
      resyncTimeoutMs: BOOT_TIMEOUT_MS,
    });
    return {
      agent,
      ended,
      console: () => readFile(path('console'), 'utf8'),
      async [Symbol.asyncDispose]() {
        await agent[Symbol.asyncDispose]();
        await end();
      },
    };
  } catch (caught) {
    const console = await readFile(path('console'), 'utf8').catch(() => '');
    await end();
    throw new Error(`the machine did not start: ${console}`, { cause: caught });
  }
}
