import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import {
  DEFAULT_NETWORK_POLICY,
  type InstanceId,
  type NetworkPolicy,
  PlatformError,
  type SandboxId,
  type SnapshotManifest,
} from '@agentenv/core';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Backend, KnownInstance, LaunchPlan, Reconciliation, RunningSandbox, StoredSnapshot } from '../backend.ts';
import { describeAdoption } from './adoption-contract.ts';
import { describeBoots } from './boot-contract.ts';
import { collectOutput, readText, rejection, run, spawn, writeText } from './guest-io.ts';
import type { BackendHarness, ProvokedEnd } from './harness.ts';
import { describeSlotCalls } from './slot-calls-contract.ts';

/**
 * The behaviour every backend shares. `makeHarness` is called once for the suite; tests run in order on it and each
 * leaves the host clean. Registers a vitest `describe` block.
 */
export function describeBackendContract(name: string, makeHarness: () => Promise<BackendHarness>): void {
  describe(`backend contract: ${name}`, () => {
    let harness: BackendHarness;
    let backend: Backend;
    let template: StoredSnapshot;
    let counter = 0;
    const live: RunningSandbox[] = [];

    beforeAll(async () => {
      harness = await makeHarness();
      backend = harness.backend;
      template = await backend.prepareTemplate(harness.rootfs, harness.resources);
    });

    afterEach(async () => {
      await Promise.all(live.splice(0).map((sandbox) => sandbox.stop()));
    });

    afterAll(async () => {
      await backend?.[Symbol.asyncDispose]();
      await harness?.[Symbol.asyncDispose]();
    });

    function planFor(network: NetworkPolicy = DEFAULT_NETWORK_POLICY): LaunchPlan {
      counter += 1;
      const serial = counter.toString().padStart(12, '0');
      const sandboxId = `icontract${serial}` as SandboxId;
      return {
        sandboxId,
        instanceId: `01900000-0000-7000-8000-${serial}` as InstanceId,
        templateId: 'base',
        resources: harness.resources,
        network,
        channelKey: crypto.getRandomValues(new Uint8Array(16)),
        hostname: sandboxId,
      };
    }

    async function restore(plan = planFor(), snapshot = template, signal?: AbortSignal): Promise<RunningSandbox> {
      const sandbox = await backend.restore(snapshot, plan, signal);
      live.push(sandbox);
      return sandbox;
    }

    async function expectClean(): Promise<void> {
      await vi.waitFor(async () => expect(await harness.leftovers()).toEqual([]), {
        timeout: harness.deadlineMs,
        interval: 20,
      });
    }

    describe('probe', () => {
      test('says whether it can be used, how isolated it is, and a remedy for each reason', async () => {
        const probe = await backend.probe();
        expect(probe.usable).toBe(true);
        expect(probe.remedies).toHaveLength(probe.reasons.length);
        expect(['vm', 'container', 'none']).toContain(probe.isolation);
      });
    });

    describe('prepareTemplate', () => {
      test('answers the same capture again without making a new one', async () => {
        const again = await backend.prepareTemplate(harness.rootfs, harness.resources);
        expect(again).toEqual(template);
      });

      test('its manifest names the backend, the fingerprint and the resources', () => {
        const { manifest } = template;
        expect(manifest.formatVersion).toBe(1);
        expect(manifest.backend).toBe(backend.name);
        expect(Object.keys(manifest.fingerprint)).not.toHaveLength(0);
        expect(manifest.resources).toEqual(harness.resources);
        expect(Number.isNaN(Date.parse(manifest.createdAt))).toBe(false);
      });

      test('its directory holds that manifest', async () => {
        const text = await readFile(join(template.directory, 'manifest.json'), 'utf8');
        expect(JSON.parse(text)).toEqual(template.manifest);
      });

      test('leaves no generation behind', expectClean);
    });

    describe('restore', () => {
      test('answers only when the guest is activated: identity files, host name, resolver', async () => {
        const plan = planFor();
        const { agent } = await restore(plan);
        expect((await agent.ping()).monotonicNs).toBeGreaterThan(0n);
        expect(await readText(agent, '/run/e2b/.E2B_SANDBOX')).toBe('true');
        expect(await readText(agent, '/run/e2b/.E2B_SANDBOX_ID')).toBe(plan.sandboxId);
        expect(await readText(agent, '/run/e2b/.E2B_TEMPLATE_ID')).toBe('base');
        expect((await readText(agent, '/etc/hostname')).trim()).toBe(plan.hostname);
        expect(await readText(agent, '/etc/hosts')).toContain(plan.hostname);
        expect(await readText(agent, '/etc/resolv.conf')).toContain('nameserver 169.254.0.21');
        expect((await run(agent, ['hostname'])).stdout.trim()).toBe(plan.hostname);
        expect(Math.abs(await agent.clockSkew())).toBeLessThan(1_000);
      });

      test('runs programs: exit codes, output, stdin, a login shell', async () => {
        const { agent } = await restore();
        expect((await run(agent, ['true'])).code).toBe(0);
        expect((await run(agent, ['false'])).code).toBe(1);
        expect(await run(agent, ['echo', 'hello', 'world'])).toEqual({ code: 0, stdout: 'hello world\n' });
        expect((await run(agent, ['/bin/bash', '-l', '-c', 'exit 7'])).code).toBe(7);
        expect((await run(agent, ['/bin/bash', '-l', '-c', 'echo from a shell'])).stdout).toBe('from a shell\n');
        const cat = await spawn(agent, ['cat'], true);
        const out = collectOutput(cat);
        await cat.writeStdin(Buffer.from('one\n'));
        await cat.writeStdin(Buffer.from('two\n'));
        await cat.closeStdin();
        expect((await cat.exit).code).toBe(0);
        await cat.outputEnd;
        expect(out.text()).toBe('one\ntwo\n');
      });

      test('refusals of the guest carry its status', async () => {
        const { agent } = await restore();
        const ask = async (promise: Promise<unknown>) => (await rejection(promise)).details.status;
        expect(await ask(agent.stat('/no/such/file'))).toBe('NOT_FOUND');
        expect(await ask(agent.listDir('/etc/passwd', { depth: 1, max: 10 }))).toBe('NOT_DIRECTORY');
        expect(await ask(agent.lookupUser('nobody-at-all'))).toBe('UNKNOWN_USER');
        expect(await ask(spawn(agent, ['no-such-program']))).toBe('EXEC_FAILED');
        expect(await ask(agent.connectPort(9))).toBe('REFUSED');
      });

      test('two generations of one capture share nothing: files, processes, identity', async () => {
        const [left, right] = await Promise.all([restore(), restore()]);
        await writeText(left.agent, '/home/user/secret', 'left');
        const sleeper = await spawn(left.agent, ['sleep', '600']);
        expect((await rejection(right.agent.stat('/home/user/secret'))).code).toBe('not_found');
        expect((await right.agent.listProcesses()).map((process) => process.id)).not.toContain(sleeper.id);
        const [leftId, rightId] = await Promise.all([
          readText(left.agent, '/run/e2b/.E2B_SANDBOX_ID'),
          readText(right.agent, '/run/e2b/.E2B_SANDBOX_ID'),
        ]);
        expect(leftId).not.toBe(rightId);
        await left.stop();
        expect((await run(right.agent, ['echo', 'still here'])).stdout).toBe('still here\n');
      });

      test('its identity survives JSON, as the ledger stores it', async () => {
        const { identity } = await restore();
        expect(JSON.parse(JSON.stringify(identity))).toEqual(identity);
      });

      test('a cold boot from the root file system answers too', async () => {
        const plan = planFor();
        const sandbox = await backend.create(harness.rootfs, plan);
        live.push(sandbox);
        expect(await readText(sandbox.agent, '/run/e2b/.E2B_SANDBOX_ID')).toBe(plan.sandboxId);
        expect((await run(sandbox.agent, ['echo', 'booted'])).stdout).toBe('booted\n');
      });

      test.for<[string, (manifest: SnapshotManifest) => SnapshotManifest]>([
        ['of another backend', (manifest) => ({ ...manifest, backend: 'somewhere-else' })],
        ['with another fingerprint', (manifest) => ({ ...manifest, fingerprint: { engine: 'other-9.9' } })],
      ])('refuses a capture %s with a conflict that names both, before anything starts', async ([, change]) => {
        const foreign = { ...template, manifest: change(template.manifest) };
        for (const refused of [backend.restore(foreign, planFor()), backend.requireRestorable(foreign.manifest)]) {
          const error = await rejection(refused);
          expect(error.code).toBe('conflict');
          expect(error.message).toContain(foreign.manifest.backend);
          expect(error.message).toContain(backend.name);
          expect(error.message).toMatch(/engine=.*engine/);
        }
        await backend.requireRestorable(template.manifest);
        await expectClean();
      });

      test('a signal that is already aborted starts nothing', async () => {
        const error = await rejection(backend.restore(template, planFor(), AbortSignal.abort()));
        expect(error.code).toBe('canceled');
        await expectClean();
      });

      test('an abort on the way leaves nothing', async () => {
        const controller = new AbortController();
        const pending = backend.restore(template, planFor(), controller.signal);
        setImmediate(() => controller.abort());
        // A backend may be done before the abort; then it is an ordinary sandbox.
        await pending.then(
          (sandbox) => sandbox.stop(),
          (error: unknown) => expect(PlatformError.fromUnknown(error).code).toBe('canceled'),
        );
        await expectClean();
      });
    });

    /** The server crashes; the one after it has put in order what was left. */
    async function restart(known: readonly KnownInstance[]): Promise<Reconciliation> {
      backend = await harness.crash();
      const reconciliation = await backend.reconcile(known);
      live.push(...reconciliation.adopted);
      template = await backend.prepareTemplate(harness.rootfs, harness.resources);
      return reconciliation;
    }

    const context = { get: () => ({ harness, backend, template }), planFor, live, expectClean };
    describeSlotCalls(context);

    describe('network', () => {
      test('a policy is in force from the start and is replaced as a whole', async () => {
        const closed = await restore(planFor({ ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false }));
        expect(await harness.reachesInternet(closed)).toBe(false);
        await closed.applyNetwork({ ...DEFAULT_NETWORK_POLICY, allowInternetAccess: true });
        expect(await harness.reachesInternet(closed)).toBe(true);
        await closed.applyNetwork({ ...DEFAULT_NETWORK_POLICY, denyOut: [harness.internetHost] });
        expect(await harness.reachesInternet(closed)).toBe(false);
        await closed.applyNetwork({
          ...DEFAULT_NETWORK_POLICY,
          allowInternetAccess: false,
          allowOut: [harness.internetHost],
        });
        expect(await harness.reachesInternet(closed)).toBe(true);
      });
    });

    describe('freeze and thaw', () => {
      test('a frozen generation answers nothing; thawed it goes on where it was', async () => {
        const sandbox = await restore();
        const cat = await spawn(sandbox.agent, ['cat'], true);
        const out = collectOutput(cat);
        await sandbox.freeze();
        await rejection(sandbox.agent.ping(AbortSignal.timeout(100)));
        await sandbox.thaw();
        await cat.writeStdin(Buffer.from('after\n'));
        await vi.waitFor(() => expect(out.text()).toBe('after\n'), harness.deadlineMs);
      });

      test('stop ends a frozen one as well', async () => {
        const sandbox = await restore();
        await sandbox.freeze();
        await sandbox.stop();
        expect((await sandbox.ended).reason).toBe('stopped');
        await expectClean();
      });
    });

    describe('capture', () => {
      test('leaves the guest held; release lets it go on with its processes and files', async () => {
        const sandbox = await restore();
        const cat = await spawn(sandbox.agent, ['cat'], true);
        const out = collectOutput(cat);
        await writeText(sandbox.agent, '/home/user/kept', 'kept');
        const captured = await sandbox.capture(await harness.emptyDirectory());
        expect(captured.manifest.backend).toBe(backend.name);
        await rejection(sandbox.agent.ping(AbortSignal.timeout(100)));
        await sandbox.release();
        await captured.release();
        expect((await sandbox.agent.ping()).monotonicNs).toBeGreaterThan(0n);
        await cat.writeStdin(Buffer.from('later\n'));
        await vi.waitFor(() => expect(out.text()).toBe('later\n'), harness.deadlineMs);
        expect(await readText(sandbox.agent, '/home/user/kept')).toBe('kept');
      });

      test('what was captured runs again, with its files and processes, apart from the source', async () => {
        const source = await restore();
        await writeText(source.agent, '/home/user/state', 'at capture');
        const sleeper = await spawn(source.agent, ['sleep', '600']);
        const directory = await harness.emptyDirectory();
        const captured = await source.capture(directory);
        const stored: unknown = JSON.parse(await readFile(join(directory, 'manifest.json'), 'utf8'));
        expect(stored).toEqual(captured.manifest);
        await source.release();
        await writeText(source.agent, '/home/user/state', 'afterwards');
        const plan = planFor();
        const copy = await restore(plan, { directory, manifest: captured.manifest });
        await captured.release();
        expect(await readText(copy.agent, '/home/user/state')).toBe('at capture');
        expect((await copy.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
        expect(await readText(copy.agent, '/run/e2b/.E2B_SANDBOX_ID')).toBe(plan.sandboxId);
      });

      test('restored as the sandbox it was, it keeps its processes and everything its owner changed', async () => {
        const plan = planFor();
        const source = await restore(plan);
        await writeText(source.agent, '/etc/hosts', '127.0.0.1 changed-by-its-owner\n', 0);
        const sleeper = await spawn(source.agent, ['sleep', '600']);
        const directory = await harness.emptyDirectory();
        const captured = await source.capture(directory);
        await source.stop();
        await captured.release();
        const { instanceId, channelKey } = planFor();
        const later = await restore(
          { ...plan, instanceId, channelKey, identity: 'kept' },
          { directory, manifest: captured.manifest },
        );
        expect(await readText(later.agent, '/etc/hosts')).toBe('127.0.0.1 changed-by-its-owner\n');
        expect((await run(later.agent, ['hostname'])).stdout.trim()).toBe(plan.hostname);
        expect((await later.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
        expect(Math.abs(await later.agent.clockSkew())).toBeLessThan(1_000);
      });

      test('over five cycles it keeps its processes and files, though what it was restored from is gone', async () => {
        const plan = planFor();
        let sandbox = await restore(plan);
        const sleeper = await spawn(sandbox.agent, ['sleep', '600']);
        for (let cycle = 0; cycle < 5; cycle++) {
          await writeText(sandbox.agent, `/home/user/cycle-${cycle}`, `written in cycle ${cycle}`);
          const directory = await harness.emptyDirectory();
          const captured = await sandbox.capture(directory);
          await sandbox.stop();
          await captured.release();
          const { instanceId, channelKey } = planFor();
          const next: LaunchPlan = { ...plan, instanceId, channelKey, identity: 'kept' };
          sandbox = await restore(next, { directory, manifest: captured.manifest });
          await rm(directory, { recursive: true });
          expect((await sandbox.agent.listProcesses()).map(({ pid }) => pid)).toContain(sleeper.pid);
        }
        for (let cycle = 0; cycle < 5; cycle++) {
          expect(await readText(sandbox.agent, `/home/user/cycle-${cycle}`)).toBe(`written in cycle ${cycle}`);
        }
        expect(Math.abs(await sandbox.agent.clockSkew())).toBeLessThan(1_000);
      });

      test('an abort on the way leaves the guest running', async () => {
        const sandbox = await restore();
        const controller = new AbortController();
        const pending = sandbox.capture(await harness.emptyDirectory(), controller.signal);
        setImmediate(() => controller.abort());
        // A backend may be done before the abort; then the guest is held.
        await pending.then(
          async (captured) => {
            await sandbox.release();
            await captured.release();
          },
          (error: unknown) => expect(PlatformError.fromUnknown(error).code).toBe('canceled'),
        );
        expect((await run(sandbox.agent, ['echo', 'still here'])).stdout).toBe('still here\n');
      });

      test('a snapshot leaves the guest running, and is complete', async () => {
        const source = await restore();
        const cat = await spawn(source.agent, ['cat'], true);
        const out = collectOutput(cat);
        await writeText(source.agent, '/home/user/state', 'at the snapshot');
        const directory = await harness.emptyDirectory();
        const captured = await source.snapshot(directory);
        await cat.writeStdin(Buffer.from('on\n'));
        await vi.waitFor(() => expect(out.text()).toBe('on\n'), harness.deadlineMs);
        await writeText(source.agent, '/home/user/state', 'afterwards');
        const copy = await restore(planFor(), { directory, manifest: captured.manifest });
        await captured.release();
        expect(await readText(copy.agent, '/home/user/state')).toBe('at the snapshot');
      });

      test('stop after a capture ends it without going on', async () => {
        const sandbox = await restore();
        const captured = await sandbox.capture(await harness.emptyDirectory());
        await sandbox.stop();
        await captured.release();
        expect((await sandbox.ended).reason).toBe('stopped');
        await expectClean();
      });

      test('a second capture of a held guest is a conflict and leaves it held', async () => {
        const sandbox = await restore();
        const captured = await sandbox.capture(await harness.emptyDirectory());
        const error = await rejection(sandbox.capture(await harness.emptyDirectory()));
        expect(error.code).toBe('conflict');
        await sandbox.release();
        await captured.release();
        expect((await sandbox.agent.ping()).monotonicNs).toBeGreaterThan(0n);
      });
    });

    describeBoots(context);

    describe('the end', () => {
      test('stop may be called twice and at once; calls on the ended guest fail', async () => {
        const sandbox = await restore();
        const sleeper = await spawn(sandbox.agent, ['sleep', '600']);
        await Promise.all([sandbox.stop(), sandbox.stop()]);
        await sandbox.stop();
        expect((await sandbox.ended).reason).toBe('stopped');
        expect((await rejection(sandbox.agent.ping())).code).toBe('sandbox_unavailable');
        expect((await rejection(sleeper.exit)).code).toBe('sandbox_unavailable');
        expect((await rejection(sandbox.applyNetwork(DEFAULT_NETWORK_POLICY))).code).toBe('sandbox_unavailable');
        await expectClean();
      });

      test.for<ProvokedEnd>(['engine-died', 'guest-poweroff', 'guest-reboot', 'guest-panic'])(
        '%s ends exactly that generation with its reason and frees everything',
        async (end) => {
          const [victim, neighbour] = await Promise.all([restore(), restore()]);
          await harness.provoke(victim, end);
          expect((await victim.ended).reason).toBe(end);
          await victim.stop();
          expect((await run(neighbour.agent, ['true'])).code).toBe(0);
          await neighbour.stop();
          await expectClean();
        },
      );
    });

    describeAdoption({
      ...{ harness: () => harness, planFor, restart, restore, expectClean },
      restoreAndLeave: (plan) => backend.restore(template, plan),
      bootAndLeave: (plan, snapshot) => backend.boot(snapshot, plan),
    });

    describe('reconcile', () => {
      test('the server after it works like any other', async () => {
        await backend.restore(template, planFor());
        await restart([]);
        await expectClean();
        const fresh = await restore();
        expect((await run(fresh.agent, ['echo', 'again'])).stdout).toBe('again\n');
      });
    });
  });
}
