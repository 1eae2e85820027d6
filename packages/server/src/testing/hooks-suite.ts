import { access } from 'node:fs/promises';
import type { Agent } from '@agentenv/agent';
import { DEFAULT_NETWORK_POLICY, type SandboxRecord } from '@agentenv/core';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { CreateColdSandbox } from '../orchestrator/orchestrator.ts';
import { type ApiAnswer, type HookHost, type HookServer, startHookServer } from './hook-world.ts';
import { type HookCall, type RecordingExtension, startRecordingExtension } from './recording-extension.ts';

/** Of the extension in these suites, milliseconds. */
const TIMEOUT_MS = 1_000;
const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const REJECTS = { status: 422, body: { error: 'not this one' } };

export interface HooksSuite {
  readonly host: () => HookHost;
  readonly server: () => HookServer;
  readonly ext: () => RecordingExtension;
  create(body?: object): Promise<ApiAnswer>;
  created(body?: object): Promise<string>;
  cold(request?: ColdRequest): Promise<SandboxRecord>;
  /** Starts another server on a home; the one of the suite is left alone. */
  start(options: Partial<Parameters<typeof startHookServer>[0]>): Promise<HookServer>;
}

interface ColdRequest {
  readonly metadata?: Record<string, string>;
  readonly customExtensionParams?: Record<string, unknown>;
}

export const paramsPath = (id: string): string => `/sandboxes/${id}/custom-extension-params`;

const COLD: Omit<CreateColdSandbox, 'rootfs' | 'resources'> = {
  ...{
    image: 'registry.test/base:1',
    timeoutSeconds: 120,
    onTimeout: 'kill',
    timeoutKeeps: 'full',
    autoResume: false,
    secure: false,
  },
  ...{ network: DEFAULT_NETWORK_POLICY, metadata: {}, envVars: {}, customExtensionParams: undefined },
};

export const idOf = ({ status, body }: ApiAnswer): string => {
  expect({ status, body }).toMatchObject({ status: 201 });
  return (body as { sandboxID: string }).sandboxID;
};

async function commandLine(server: HookServer, id: string): Promise<string> {
  const target = server.orchestrator.target(id);
  if (target.kind !== 'ready') throw new Error(`sandbox ${id} does not run`);
  const { body } = await (target.agent as Agent).readFile('/proc/cmdline');
  const pieces: Uint8Array[] = [];
  for await (const piece of body) pieces.push(Uint8Array.from(piece));
  return Buffer.concat(pieces).toString();
}

/**
 * Contract hooks.md section 8 on one kind of backend: the same statements, numbered as there. `more` adds those of other
 * files to the same server.
 */
export function describeHooks(
  name: string,
  openHost: () => Promise<HookHost>,
  more: readonly ((suite: HooksSuite) => void)[] = [],
): void {
  describe(name, () => {
    let host: HookHost;
    let server: HookServer;
    let ext: RecordingExtension;

    beforeAll(async () => {
      ext = await startRecordingExtension();
      host = await openHost();
      server = await startHookServer({ host, extensionUrl: ` ${ext.url}// `, timeoutMs: TIMEOUT_MS });
    });

    afterEach(async () => {
      ext.reset();
      const listed = (await server.api('GET', '/v2/sandboxes')).body as { sandboxID: string }[];
      await Promise.all(listed.map(({ sandboxID }) => server.api('DELETE', `/sandboxes/${sandboxID}`)));
      ext.reset();
      expect(server.orchestrator.status().sandboxes).toMatchObject({ running: 0, creating: 0, killing: 0, paused: 0 });
      await expect.poll(() => host.slotsInUse()).toBe(0);
    });

    afterAll(async () => {
      await server?.[Symbol.asyncDispose]();
      await host?.[Symbol.asyncDispose]();
      await ext?.[Symbol.asyncDispose]();
    });

    const create = (body: object = {}): Promise<ApiAnswer> =>
      server.api('POST', '/sandboxes', { templateID: 'base', timeout: 120, ...body });
    const suite: HooksSuite = {
      ...{ host: () => host, server: () => server, ext: () => ext, create },
      created: async (body) => idOf(await create(body)),
      cold: (request = {}) =>
        server.orchestrator.createCold({ ...COLD, rootfs: host.rootfs, resources: host.resources, ...request }),
      start: (options) => startHookServer({ host, extensionUrl: ext.url, timeoutMs: TIMEOUT_MS, ...options }),
    };
    const bodies = (calls: readonly HookCall[]): readonly HookCall['body'][] => calls.map(({ body }) => body);
    const instances = (calls: readonly HookCall[]): readonly unknown[] =>
      bodies(calls).map(({ sandboxInstanceId }) => sandboxInstanceId);

    describe('delivery and payload', () => {
      test('hooks/01 hooks/44 hooks/46 a cold create sends start-fresh; its failures are the caller’s or the server’s', async () => {
        const { id } = await suite.cold({ metadata: { team: 'alpha' } });
        expect(ext.calls.map(({ hook }) => hook)).toEqual(['start-fresh']);
        const [body] = bodies(ext.calls);
        expect(body).toEqual({
          sandboxId: id,
          sandboxInstanceId: expect.stringMatching(UUID_V7),
          networkNamespacePath: expect.any(String),
          hostInteractionIp: expect.stringMatching(/^\d+\.\d+\.\d+\.\d+$/),
          customExtensionParams: {},
          metadata: { team: 'alpha' },
        });
        await access(String(body?.networkNamespacePath));
        ext.answer('start-fresh', [REJECTS, { status: 503 }]);
        const rejected = await suite.cold().catch((error: unknown) => error);
        expect(rejected).toMatchObject({ code: 'extension_rejected', mapping: { http: 400 } });
        expect((rejected as Error).message).toMatch(/422.*not this one/);
        const failed = await suite.cold().catch((error: unknown) => error);
        expect(failed).toMatchObject({ code: 'extension_failed', mapping: { http: 500 } });
        expect(server.orchestrator.status().sandboxes).toMatchObject({ running: 1, creating: 0, killing: 0 });
      });

      test('hooks/02 hooks/03 hooks/04 extraBootArgs reach the kernel; no and empty metadata are no key', async () => {
        ext.answer('start-fresh', { status: 200, body: { extraBootArgs: ' aenv.x=1 ' } });
        const { id } = await suite.cold({ metadata: {} });
        expect(await commandLine(server, id)).toMatch(/ aenv\.x=1\n$/);
        expect(bodies(ext.of('start-fresh'))[0]).not.toHaveProperty('metadata');
      });

      test('hooks/05 extraBootArgs that are null, missing or blank change nothing', async () => {
        const lines = new Set<string>();
        for (const body of [{ extraBootArgs: null }, {}, { extraBootArgs: '  ' }]) {
          ext.answer('start-fresh', { status: 200, body });
          const { id } = await suite.cold();
          lines.add(await commandLine(server, id));
          await server.api('DELETE', `/sandboxes/${id}`);
        }
        expect(lines.size).toBe(1);
        expect([...lines][0]).not.toMatch(/\s\n$/);
      });

      test('hooks/06 hooks/07 hooks/08 a template sends one start-resume; nothing runs until it is answered', async () => {
        ext.answer('start-resume', 'hang');
        const creating = create();
        await expect.poll(() => ext.calls.length).toBe(1);
        const [call] = ext.calls;
        expect(call).toMatchObject({ hook: 'start-resume', path: '/sandbox-hook/start-resume' });
        const id = String(call?.body.sandboxId);
        expect(server.orchestrator.target(id)).toEqual({ kind: 'not-proxyable' });
        expect((await server.api('GET', `/sandboxes/${id}`)).status).toBe(404);
        expect((await server.api('GET', '/v2/sandboxes')).body).toEqual([]);
        expect(await server.visit(id, 'agentenv')).toMatchObject({ status: 410 });
        expect(await server.visit(id, 'e2b')).toMatchObject({
          status: 502,
          text: expect.stringContaining('The sandbox was not found'),
        });
        ext.reset();
        expect(idOf(await creating)).toBe(id);
        expect(ext.calls).toEqual([]);
      });
    });

    describe('instances and stop', () => {
      test('hooks/11 a delete sends one stop with the instance’s id, before its slot is free', async () => {
        const id = await suite.created({ metadata: { team: 'alpha' } });
        let slots = 0;
        ext.answer('stop', (_request, response) => {
          slots = host.slotsInUse();
          response.writeHead(200).end();
        });
        expect((await server.api('DELETE', `/sandboxes/${id}`)).status).toBe(204);
        expect(slots).toBe(1);
        expect(host.slotsInUse()).toBe(0);
        const [sandboxInstanceId] = instances(ext.of('start-resume'));
        expect(bodies(ext.of('stop'))).toEqual([{ sandboxId: id, sandboxInstanceId }]);
      });

      test('hooks/12 hooks/17 hooks/18 hooks/20 hooks/24 hooks/70 pause and resume: start, stop, start of another instance', async () => {
        const id = await suite.created({ metadata: { team: 'alpha' } });
        ext.answer('stop', { status: 500 });
        expect((await server.api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
        expect(server.orchestrator.get(id).state).toBe('paused');
        expect((await server.api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
        expect(ext.calls.map(({ hook }) => hook)).toEqual(['start-resume', 'stop', 'start-resume']);
        const [first, stopped, second] = instances(ext.calls);
        expect(stopped).toBe(first);
        expect(second).not.toBe(first);
        expect(ext.calls.map(({ body }) => body.sandboxId)).toEqual([id, id, id]);
        expect(bodies(ext.of('start-resume')).map(({ metadata }) => metadata)).toEqual(
          Array(2).fill({ team: 'alpha' }),
        );
        await server.api('POST', `/sandboxes/${id}/pause`);
        expect(ext.of('stop')).toHaveLength(2);
        expect((await server.api('DELETE', `/sandboxes/${id}`)).status).toBe(204);
        expect(ext.of('stop')).toHaveLength(2);
        expect(new Set(instances(ext.of('stop'))).size).toBe(2);
      });

      test('hooks/14 hooks/45 hooks/46 hooks/57 a refused start is followed by a stop, and nothing is left', async () => {
        const before = server.orchestrator.status().createFails;
        ext.answer('start-resume', [REJECTS, { status: 503, body: 'no capacity' }]);
        ext.answer('stop', { status: 500 });
        const rejected = await create();
        expect(rejected).toMatchObject({ status: 400, body: { code: 400 } });
        expect(JSON.stringify(rejected.body)).toMatch(/422.*not this one/);
        expect(await create()).toMatchObject({ status: 500, body: { message: expect.stringContaining('503') } });
        expect(instances(ext.of('stop'))).toEqual(instances(ext.of('start-resume')));
        expect((await server.api('GET', '/v2/sandboxes')).body).toEqual([]);
        expect(server.orchestrator.status().createFails).toBe(before + 2);
        expect(host.slotsInUse()).toBe(0);
      });

      test('hooks/15 hooks/47 a start that is never answered ends with the timeout, and is followed by a stop', async () => {
        ext.answer('start-resume', 'hang');
        expect(await create()).toMatchObject({
          status: 500,
          body: { message: expect.stringContaining('start-resume') },
        });
        expect(instances(ext.of('stop'))).toEqual(instances(ext.of('start-resume')));
        expect((await server.api('GET', '/v2/sandboxes')).body).toEqual([]);
      });

      test('hooks/16 a stop that hangs does not keep a sandbox', async () => {
        const id = await suite.created();
        ext.answer('stop', 'hang');
        expect((await server.api('DELETE', `/sandboxes/${id}`)).status).toBe(204);
        expect((await server.api('GET', `/sandboxes/${id}`)).status).toBe(404);
        expect(ext.of('stop')).toHaveLength(1);
      });

      test('a kill while the extension does not answer a start is immediate', async () => {
        ext.answer('start-resume', 'hang');
        const creating = create();
        await expect.poll(() => ext.calls.length).toBe(1);
        const id = String(ext.calls[0]?.body.sandboxId);
        const from = performance.now();
        expect((await server.api('DELETE', `/sandboxes/${id}`)).status).toBe(204);
        expect(performance.now() - from).toBeLessThan(TIMEOUT_MS);
        expect(await creating).toMatchObject({ status: 404, body: { message: 'sandbox was killed' } });
        expect(instances(ext.of('stop'))).toEqual(instances(ext.of('start-resume')));
      });
    });

    for (const addTests of more) addTests(suite);
  });
}
