import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DEFAULT_NETWORK_POLICY, type InstanceId, type SandboxId } from '@agentenv/core';
import type { Backend, StoredSnapshot } from '@agentenv/runtime';
import { openCaptureStore } from '@agentenv/storage';
import { describe, expect, test } from 'vitest';
import { createHookHome, type HookHome } from './hook-world.ts';
import { type HooksSuite, idOf, paramsPath } from './hooks-suite.ts';
import { override } from './override.ts';

const MANIFEST_FILE = 'manifest.json';

type Manifest = Readonly<Record<string, unknown>>;

/** The manifests of all captures there are. */
export async function manifestsOf({ captures }: HookHome): Promise<readonly string[]> {
  return (await readdir(captures)).map((name) => join(captures, name, MANIFEST_FILE));
}

async function editManifest(path: string, edit: (manifest: Manifest) => Manifest): Promise<void> {
  await writeFile(path, JSON.stringify(edit(JSON.parse(await readFile(path, 'utf8')) as Manifest)));
}

/** The backend as one that writes other manifests for snapshots of what it restored. */
function writingManifests(backend: Backend, edit: (manifest: Manifest) => Manifest): Backend {
  return override(backend, {
    async restore(...request) {
      const running = await backend.restore(...request);
      return override(running, {
        async snapshot(directory, signal) {
          const captured = await running.snapshot(directory, signal);
          await editManifest(join(directory, MANIFEST_FILE), edit);
          return captured;
        },
      });
    },
  });
}

/** Restores a capture on behalf of nobody and captures what runs, as a build from a snapshot does. */
async function rebuild(backend: Backend, from: StoredSnapshot, directory: string): Promise<StoredSnapshot> {
  await using running = await backend.restore(from, {
    ...{ sandboxId: 'ibuildbuildbuildbuild' as SandboxId, templateId: 'base', hostname: 'build' },
    instanceId: '01900000-0000-7000-8000-00000000b01d' as InstanceId,
    ...{ resources: from.manifest.resources, network: DEFAULT_NETWORK_POLICY },
    channelKey: crypto.getRandomValues(new Uint8Array(16)),
  });
  const captured = await running.capture(directory);
  await captured.release();
  return { directory, manifest: captured.manifest };
}

/** What captures and their manifests have no say in, and machines that are nobody's; the same on every backend. */
export function describeHookCaptures({ server, ext, host, created, start }: HooksSuite): void {
  const starts = (key: 'metadata' | 'customExtensionParams') =>
    ext()
      .of('start-resume')
      .map(({ body }) => body[key]);
  const snapshotOf = async (from: Pick<ReturnType<typeof server>, 'api'>, id: string): Promise<string> => {
    const { status, body } = await from.api('POST', `/sandboxes/${id}/snapshots`);
    expect({ status, body }).toMatchObject({ status: 201 });
    return (body as { snapshotID: string }).snapshotID;
  };

  describe('captures', () => {
    test('hooks/26 hooks/27 a capture without metadata resumes with those of the record, one with others too', async () => {
      await using home = await createHookHome();
      let id: string;
      {
        await using first = await start({ home });
        id = idOf(await first.api('POST', '/sandboxes', { templateID: 'base', metadata: { team: 'alpha' } }));
        expect((await first.api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
      }
      const [before = '', ...others] = await manifestsOf(home);
      expect(others).toEqual([]);
      expect(await readFile(before, 'utf8')).not.toMatch(/alpha|metadata/);
      {
        await using second = await start({ home });
        ext().reset();
        expect((await second.api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
        expect(starts('metadata')).toEqual([{ team: 'alpha' }]);
        expect((await second.api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
      }
      const foreign = { metadata: { team: 'beta' }, customExtensionParams: { b: 1 } };
      for (const path of await manifestsOf(home)) await editManifest(path, (manifest) => ({ ...manifest, ...foreign }));
      await using third = await start({ home });
      ext().reset();
      expect((await third.api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
      expect(starts('metadata')).toEqual([{ team: 'alpha' }]);
      expect(starts('customExtensionParams')).toEqual([{}]);
    });

    test('hooks/71 hooks/72 those of another backend are refused without a hook; unknown keys of a manifest are ignored', async () => {
      let edit = (manifest: Manifest): Manifest => manifest;
      await using other = await start({ backend: (own) => writingManifests(own, (manifest) => edit(manifest)) });
      const source = idOf(await other.api('POST', '/sandboxes', { templateID: 'base', timeout: 120 }));
      edit = (manifest) => ({ ...manifest, backend: 'container' });
      const foreign = await snapshotOf(other, source);
      // Before there was more than one, none was named.
      edit = ({ backend: _none, ...manifest }) => manifest;
      const first = await snapshotOf(other, source);
      edit = (manifest) => ({ ...manifest, metadata: { team: 'beta' }, later: [{ deep: true }] });
      const extended = await snapshotOf(other, source);

      ext().reset();
      for (const [templateID, name] of [
        [foreign, 'container'],
        [first, 'firecracker'],
      ]) {
        const refused = await other.api('POST', '/sandboxes', { templateID });
        expect(refused).toMatchObject({ status: 409, body: { message: expect.stringContaining(String(name)) } });
      }
      expect(ext().calls).toEqual([]);
      idOf(await other.api('POST', '/sandboxes', { templateID: extended }));
      expect(starts('metadata')).toEqual([undefined]);
    });
  });

  describe('machines that are nobody’s', () => {
    test('hooks/43 hooks/67 a build from a snapshot asks nobody, and its template has none of the parameters', async () => {
      await using home = await createHookHome();
      await using built = await createHookHome();
      let template: Awaited<ReturnType<typeof rebuild>>;
      {
        await using first = await start({ home });
        const body = { templateID: 'base', timeout: 120, customExtensionParams: { p: 1 } };
        const source = idOf(await first.api('POST', '/sandboxes', body));
        const snapshotID = await snapshotOf(first, source);
        const store = await openCaptureStore({ root: home.captures });
        const [capture] = await store.list();
        ext().reset();
        template = await rebuild(first.backend, await store.open(capture as never), built.captures);
        expect(ext().calls).toEqual([]);
        idOf(await first.api('POST', '/sandboxes', { templateID: snapshotID }));
        expect(starts('customExtensionParams')).toEqual([{ p: 1 }]);
      }
      ext().reset();

      // Only now: on one host a server ends what another one of it left.
      await using second = await start({
        backend: (own) => override(own, { prepareTemplate: async () => template }),
      });
      expect(ext().calls).toEqual([]);
      const id = idOf(await second.api('POST', '/sandboxes', { templateID: 'base' }));
      expect(starts('customExtensionParams')).toEqual([{}]);
      expect(await second.api('GET', paramsPath(id))).toEqual({ status: 200, body: {} });
    });

    test('hooks/66 hooks/69 looking at the host and building templates asks nobody, whatever comes of it', async () => {
      await using fresh = await start({});
      expect((await fresh.backend.probe()).usable).toBe(true);
      const { rootfs, resources } = host();
      const own = { ...resources, diskSizeMB: resources.diskSizeMB + 1024 };
      await fresh.backend.prepareTemplate(rootfs, own);
      const given = AbortSignal.abort(new Error('given up'));
      await expect(fresh.backend.prepareTemplate({ ...rootfs, digest: 'other' }, own, given)).rejects.toThrow();
      expect(ext().calls).toEqual([]);
    });
  });

  describe('resume by a request', () => {
    test('hooks/51 the extension refuses or fails: 502, what it said stays inside, and it stays paused', async () => {
      const id = await created({ autoResume: { enabled: true }, metadata: { team: 'alpha' } });
      expect((await server().api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
      ext().reset();
      const rejects = { status: 403, body: 'not this one' };
      ext().answer('start-resume', [rejects, rejects, { status: 503, body: 'not this one' }, 'hang']);
      const told = (why: string) => ({
        status: 502,
        text: JSON.stringify({ sandboxId: id, message: `The sandbox could not be resumed: ${why}`, code: 502 }),
      });
      for (const [family, answer] of [
        ['agentenv', { status: 502, text: 'sandbox auto-resume failed' }],
        ['e2b', told('the custom extension refused it')],
        ['e2b', told('the custom extension failed')],
        ['agentenv', { status: 502, text: 'sandbox auto-resume failed' }],
      ] as const) {
        expect(await server().visit(id, family)).toEqual(answer);
        expect(server().orchestrator.get(id).state).toBe('paused');
      }
      const instancesOf = (hook: 'start-resume' | 'stop') =>
        ext()
          .of(hook)
          .map(({ body }) => body.sandboxInstanceId);
      expect(instancesOf('stop')).toEqual(instancesOf('start-resume'));
      expect(new Set(instancesOf('stop')).size).toBe(4);
      expect(await server().visit(id, 'e2b')).toMatchObject({ text: expect.stringContaining('port is not open') });
      expect(server().orchestrator.get(id).state).toBe('running');
      expect(starts('metadata')).toEqual(Array(5).fill({ team: 'alpha' }));
    });
  });
}
