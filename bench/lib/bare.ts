import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chown, mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { type Agent, createAgent, createUnixSocketEndpoint } from '@agentenv/agent';
import { SILENT_LOG, type SnapshotManifest } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { createExec, GUEST_ADDRESSING, loadArtifacts } from '@agentenv/runtime';
import { createOverlay } from '../../packages/runtime/src/qemu/qcow2.ts';
import { type Accelerator, ENGINE_FD, engineArguments } from '../../packages/runtime/src/qemu/qemu-args.ts';
import { createTestNamespace } from '../../packages/runtime/src/testing/fake-internet.ts';

/** Unused by any server: slots begin elsewhere. */
const UID = 59_999;
const ENGINE = '/usr/bin/qemu-system-x86_64';

/** A machine restored with nothing around it: no slot pool, no server, no ledger. */
export interface BareMachine extends AsyncDisposable {
  readonly pid: number;
  readonly agent: Agent;
  /** Milliseconds from the spawn of the engine to the agent's first pong; it is activated after that. */
  readonly pingMs: number;
}

export interface BareHost extends AsyncDisposable {
  restore(): Promise<BareMachine>;
}

export interface BareHostOptions {
  /** Where the server's backend keeps its engines and templates. */
  readonly engines?: string;
  /** How many machines may run at the same time; each has a tap of its own. */
  readonly atOnce?: number;
}

/** Prepares one network namespace with the taps and finds the template a server captured in `home`. */
export async function openBareHost(
  home: string,
  artifactsDirectory: string,
  { engines = join(home, 'qemu'), atOnce = 1 }: BareHostOptions = {},
): Promise<BareHost> {
  const clock = createRealClock();
  const exec = createExec({ clock });
  const artifacts = await loadArtifacts(artifactsDirectory);
  const { directory, manifest } = await findTemplate(join(engines, 'templates'), artifacts.rootfs.base.path);
  const tsc = /tsc=(\d+)kHz/.exec(manifest.fingerprint.cpu ?? '')?.[1];
  const accelerator: Accelerator =
    manifest.fingerprint.accelerator === 'kvm'
      ? { kind: 'kvm', cpuModel: '', group: undefined }
      : { kind: 'tcg', tscKhz: Number(tsc) };
  const scratch = `/run/aenv-bench-${process.pid}`;
  const namespacePath = join(scratch, 'netns');
  await mkdir(scratch, { recursive: true });
  const taps = Array.from({ length: atOnce }, (_, index) => `tap${index}`);
  const devices = taps.flatMap((tap) => [
    `tuntap add dev ${tap} mode tap user ${UID} group ${UID}`,
    `link set ${tap} up`,
  ]);
  const network = await createTestNamespace(exec, namespacePath, devices);

  const { memory, vmState } = manifest;
  if (memory === undefined || vmState === undefined) throw new Error('the template was captured without memory');
  return {
    async restore() {
      const tap = taps.pop();
      if (tap === undefined) throw new Error(`this host was opened for ${atOnce} machines at once`);
      const name = randomBytes(5).toString('hex');
      const sockets = join(scratch, name);
      const instance = join(engines, 'instances', `bench-${name}`);
      for (const made of [sockets, instance]) {
        await mkdir(made, { recursive: true });
        await chown(made, UID, UID);
      }
      await createOverlay(join(instance, 'upper.qcow2'), manifest.resources.diskSizeMB * 2 ** 20, UID);
      const inherited = [
        ['--tap', ENGINE_FD.tap, tap],
        ['--dir', ENGINE_FD.runtime, sockets],
        ['--dir', ENGINE_FD.instance, instance],
        ['--file', ENGINE_FD.memory, join(directory, memory.path)],
        ['--file', ENGINE_FD.rootfs, manifest.rootfs.path],
        ['--file', ENGINE_FD.disk, join(directory, manifest.disk.path)],
        ['--file', ENGINE_FD.deviceState, join(directory, vmState.path)],
      ].flatMap(([option, descriptor, path]) => [String(option), `${descriptor}=${path}`]);
      const start = performance.now();
      const child = spawn(
        artifacts.launcher.path,
        [
          ...['--netns', namespacePath, '--uid', String(UID), '--gid', String(UID), ...inherited, '--', ENGINE],
          ...engineArguments({
            name: `bench-${name}`,
            uuid: crypto.randomUUID(),
            accelerator,
            resources: manifest.resources,
            mac: GUEST_ADDRESSING.mac,
            start: { kind: 'incoming' },
          }),
        ],
        { stdio: ['ignore', 'ignore', 'inherit'], env: {}, cwd: '/' },
      );
      const exited = once(child, 'exit');
      const end = async () => {
        child.kill('SIGKILL');
        await exited;
        taps.push(tap);
        await rm(sockets, { recursive: true, force: true });
        await rm(instance, { recursive: true, force: true });
      };
      try {
        const monitor = await connectSoon(join(sockets, 'qmp.sock'));
        const qmp = bareQmp(monitor);
        await qmp('qmp_capabilities');
        await qmp('migrate-set-capabilities', { capabilities: [{ capability: 'events', state: true }] });
        await qmp('migrate-incoming', { uri: `fd:${ENGINE_FD.deviceState}` }, /"MIGRATION".*"completed"/);
        await qmp('cont');
        const signal = AbortSignal.timeout(30_000);
        const socket = await createUnixSocketEndpoint(join(sockets, 'agent.sock'), { clock }).connect(signal);
        const agent = await createAgent({
          socket,
          key: Buffer.from(manifest.channelKey, 'hex'),
          clock,
          rng: { bytes: (count) => randomBytes(count) },
          log: SILENT_LOG,
          slotAddress: GUEST_ADDRESSING.ipv4.split('/')[0] ?? '',
        });
        await agent.ping();
        const pingMs = performance.now() - start;
        // Captured frozen: the least that lets it run its processes, and not part of the floor.
        await agent.activate({
          key: randomBytes(16),
          generation: crypto.randomUUID(),
          resetStreams: false,
          hostname: '',
          files: [],
        });
        return {
          pid: child.pid ?? -1,
          agent,
          pingMs,
          async [Symbol.asyncDispose]() {
            await agent[Symbol.asyncDispose]();
            monitor.destroy();
            await end();
          },
        };
      } catch (error) {
        await end();
        throw error;
      }
    },
    async [Symbol.asyncDispose]() {
      await network[Symbol.asyncDispose]();
      await rm(scratch, { recursive: true, force: true });
    },
  };
}

/** The newest template of a root file system; those of former ones may be there too. */
async function findTemplate(templates: string, rootfs: string) {
  const names = (await readdir(templates)).filter((name) => !name.startsWith('.'));
  const found = await Promise.all(
    names.map(async (name) => {
      const directory = join(templates, name);
      const manifest = JSON.parse(await readFile(join(directory, 'manifest.json'), 'utf8')) as SnapshotManifest;
      return { directory, manifest };
    }),
  );
  const [newest] = found
    .filter(({ manifest }) => manifest.rootfs.path === rootfs)
    .sort((left, right) => right.manifest.createdAt.localeCompare(left.manifest.createdAt));
  if (newest === undefined) throw new Error(`no template of the present root file system in ${templates}`);
  return newest;
}

async function connectSoon(path: string): Promise<Socket> {
  const deadline = performance.now() + 10_000;
  for (;;) {
    const socket = connect(path);
    const connected = await Promise.race([
      once(socket, 'connect').then(() => true),
      once(socket, 'error').then(() => false),
    ]).catch(() => false);
    if (connected) return socket.on('error', () => undefined);
    if (performance.now() > deadline) throw new Error(`${path} does not answer`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

/** The least a restore needs of QMP: send one command, wait for its answer (and for a line that matches `until`). */
function bareQmp(socket: Socket) {
  let received = '';
  let wake = () => {};
  socket.setEncoding('utf8').on('data', (text: string) => {
    received += text;
    wake();
  });
  const line = async (pattern: RegExp) => {
    for (;;) {
      const found = received.split('\n').find((text) => pattern.test(text));
      if (found !== undefined) return found;
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  return async (execute: string, parameters: object = {}, until?: RegExp) => {
    if (execute === 'qmp_capabilities') await line(/"QMP"/);
    received = '';
    socket.write(`${JSON.stringify({ execute, arguments: parameters })}\n`);
    const answer = await line(/"(return|error)"/);
    if (answer.includes('"error"')) throw new Error(`${execute}: ${answer}`);
    if (until !== undefined) await line(until);
  };
}
