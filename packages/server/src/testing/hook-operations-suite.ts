import { readFile } from 'node:fs/promises';
import { describe, expect, test } from 'vitest';
import { manifestsOf } from './hook-captures-suite.ts';
import { createHookHome } from './hook-world.ts';
import { type HooksSuite, idOf, paramsPath } from './hooks-suite.ts';

const REJECTS = { status: 403, body: { error: 'not this one' } };

/** Metadata, parameters and failures of operations on sandboxes that exist; the same on every backend. */
export function describeHookOperations({ server, ext, create, created, start }: HooksSuite): void {
  const detail = async (id: string) => (await server().api('GET', `/sandboxes/${id}`)).body;
  const starts = (key: 'metadata' | 'customExtensionParams') =>
    ext()
      .of('start-resume')
      .map(({ body }) => body[key]);

  describe('snapshots and forks', () => {
    test('hooks/13 hooks/21 hooks/22 hooks/32 hooks/33 hooks/34 hooks/35 a snapshot gives its parameters, never its metadata', async () => {
      const source = await created({ metadata: { team: 'alpha' }, customExtensionParams: { p: 1 } });
      const seen = ext().calls.length;
      const taken = await server().api('POST', `/sandboxes/${source}/snapshots`);
      expect(taken.status).toBe(201);
      expect(ext().calls).toHaveLength(seen);
      const { snapshotID } = taken.body as { snapshotID: string };
      const manifests = await Promise.all((await manifestsOf(server().home)).map((path) => readFile(path, 'utf8')));
      expect(manifests.length).toBeGreaterThan(0);
      for (const manifest of manifests) expect(manifest).not.toContain('alpha');
      ext().reset();
      const inherited = await created({ templateID: snapshotID });
      const overridden = await created({
        ...{ templateID: snapshotID, metadata: { team: 'beta' }, customExtensionParams: { q: 2 } },
      });
      const cleared = await created({ templateID: snapshotID, customExtensionParams: {} });
      expect(starts('metadata')).toEqual([undefined, { team: 'beta' }, undefined]);
      expect(starts('customExtensionParams')).toEqual([{ p: 1 }, { q: 2 }, {}]);
      expect(JSON.stringify(await detail(inherited))).not.toContain('alpha');
      for (const [id, params] of [
        [inherited, { p: 1 }],
        [overridden, { q: 2 }],
        [cleared, {}],
      ] as const) {
        expect(await server().api('GET', paramsPath(id))).toEqual({ status: 200, body: params });
      }
      await server().api('DELETE', `/sandboxes/${source}`);
      expect(ext().of('stop')[0]?.body.sandboxId).toBe(source);
      for (const id of [inherited, overridden, cleared]) await server().api('DELETE', `/sandboxes/${id}`);
      expect((await server().api('DELETE', `/templates/${encodeURIComponent(snapshotID)}`)).status).toBe(204);
    });

    test('hooks/23 hooks/30 hooks/36 hooks/53 fork children have metadata and present parameters; one may be rejected', async () => {
      const source = await created({ metadata: { team: 'alpha' }, customExtensionParams: { p: 1 } });
      ext().answer('patch-params', { status: 200, body: { customExtensionParams: { r: 3 } } });
      const patched = await server().api('PATCH', paramsPath(source), { anything: true });
      expect(patched).toEqual({ status: 200, body: { r: 3 } });
      ext().reset();
      ext().answer('start-resume', [{ status: 200 }, { status: 422, body: 'no' }, { status: 200 }]);
      const { status, body } = await server().api('POST', `/sandboxes/${source}/fork`, { count: 3, timeout: 120 });
      expect(status).toBe(201);
      const results = body as { sandbox?: { sandboxID: string }; error?: { code: number; message: string } }[];
      expect(results.flatMap(({ error }) => error ?? [])).toEqual([
        { code: 400, message: expect.stringMatching(/422: no/) },
      ]);
      const children = results.flatMap(({ sandbox }) => sandbox?.sandboxID ?? []);
      expect(children).toHaveLength(2);
      expect(server().orchestrator.get(source).state).toBe('running');
      expect(starts('metadata')).toEqual(Array(3).fill({ team: 'alpha' }));
      expect(starts('customExtensionParams')).toEqual(Array(3).fill({ r: 3 }));
      const [child = ''] = children;
      expect(await detail(child)).toMatchObject({ metadata: { team: 'alpha' } });
      ext().reset();
      await server().api('POST', `/sandboxes/${child}/pause`);
      await server().api('POST', `/sandboxes/${child}/resume`);
      expect(starts('metadata')).toEqual([{ team: 'alpha' }]);
      expect(starts('customExtensionParams')).toEqual([{ r: 3 }]);
    });

    test('hooks/54 a fork of which no child may start answers 201 with the errors, and the source runs', async () => {
      const source = await created();
      ext().answer('start-resume', { status: 500 });
      const { status, body } = await server().api('POST', `/sandboxes/${source}/fork`, { count: 3 });
      expect(status).toBe(201);
      expect(body).toEqual(Array(3).fill({ error: expect.objectContaining({ code: 500 }) }));
      expect(server().orchestrator.status().sandboxes).toMatchObject({ running: 1, creating: 0, killing: 0 });
    });
  });

  describe('resume and connect', () => {
    test('hooks/48 hooks/49 hooks/50 a refused resume leaves it paused; 409, 400 or 500; later it resumes', async () => {
      const id = await created();
      await server().api('POST', `/sandboxes/${id}/pause`);
      ext().answer('start-resume', [REJECTS, REJECTS, { status: 500 }, { status: 500 }]);
      const resume = () => server().api('POST', `/sandboxes/${id}/resume`);
      const connect = () => server().api('POST', `/sandboxes/${id}/connect`, { timeout: 60 });
      for (const [attempt, status] of [
        [resume, 409],
        [connect, 400],
        [resume, 500],
        [connect, 500],
      ] as const) {
        expect((await attempt()).status).toBe(status);
        expect(server().orchestrator.get(id).state).toBe('paused');
      }
      expect((await resume()).status).toBe(201);
      expect(ext().of('stop')).toHaveLength(5);
    });

    test('a resume that boots from the disk is a resume to the extension: one start-resume, one stop', async () => {
      const id = await created({ metadata: { team: 'alpha' }, customExtensionParams: { p: 1 } });
      ext().reset();
      expect((await server().api('POST', `/sandboxes/${id}/pause`, { memory: false })).status).toBe(204);
      expect((await server().api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
      expect(ext().of('stop')).toHaveLength(1);
      expect(ext().of('start-fresh')).toEqual([]);
      expect(starts('metadata')).toEqual([{ team: 'alpha' }]);
      expect(starts('customExtensionParams')).toEqual([{ p: 1 }]);
    });

    test('hooks/55 two resumes at once that are rejected: both are told, and it stays paused', async () => {
      const id = await created();
      await server().api('POST', `/sandboxes/${id}/pause`);
      ext().reset();
      ext().answer('start-resume', REJECTS);
      const resume = () => server().api('POST', `/sandboxes/${id}/resume`);
      const answers = await Promise.all([resume(), resume()]);
      expect(answers.map(({ status }) => status)).toEqual([409, 409]);
      expect(ext().of('start-resume').length).toBe(ext().of('stop').length);
      expect(server().orchestrator.get(id).state).toBe('paused');
    });

    test('hooks/25 hooks/37 after a restart the record tells what to send', async () => {
      await using home = await createHookHome();
      let id: string;
      {
        await using first = await start({ home });
        const body = { templateID: 'base', metadata: { team: 'alpha' }, customExtensionParams: { r: 3 } };
        id = idOf(await first.api('POST', '/sandboxes', body));
        expect((await first.api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
      }
      ext().reset();
      await using second = await start({ home });
      expect(await second.api('GET', paramsPath(id))).toEqual({ status: 200, body: { r: 3 } });
      expect((await second.api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
      expect(starts('metadata')).toEqual([{ team: 'alpha' }]);
      expect(starts('customExtensionParams')).toEqual([{ r: 3 }]);
    });

    test('hooks/19 an orderly end of the server sends one stop for every running sandbox', async () => {
      const running: string[] = [];
      {
        await using other = await start({});
        for (let count = 0; count < 2; count++) {
          running.push(idOf(await other.api('POST', '/sandboxes', { templateID: 'base' })));
        }
      }
      const stopped = ext()
        .of('stop')
        .map(({ body }) => String(body.sandboxId));
      expect(stopped.toSorted()).toEqual(running.toSorted());
    });
  });

  describe('parameters', () => {
    test('hooks/28 hooks/29 a patch is passed on as it is, metadata beside it', async () => {
      const patch = { b: [1, { c: null }], a: 'ü', metadata: { mine: 'yes' } };
      const [withMetadata, without] = [await created({ metadata: { team: 'alpha' } }), await created()];
      for (const id of [withMetadata, without]) await server().api('PATCH', paramsPath(id), patch);
      const [first, second] = ext()
        .of('patch-params')
        .map(({ body }) => body);
      expect(first).toEqual({ sandboxId: withMetadata, patch, metadata: { team: 'alpha' } });
      expect(JSON.stringify(first?.patch)).toBe(JSON.stringify(patch));
      expect(second).toEqual({ sandboxId: without, patch });
    });

    test('hooks/31 a sandbox without metadata is patched, resumed and forked without the key', async () => {
      const id = await created({ metadata: {} });
      await server().api('PATCH', paramsPath(id), { a: 1 });
      await server().api('POST', `/sandboxes/${id}/pause`);
      expect((await server().api('POST', `/sandboxes/${id}/resume`)).status).toBe(201);
      expect((await server().api('POST', `/sandboxes/${id}/fork`, { count: 2, timeout: 120 })).status).toBe(201);
      expect(
        ext()
          .calls.map(({ hook }) => hook)
          .toSorted(),
      ).toEqual(['patch-params', ...Array(4).fill('start-resume'), 'stop']);
      for (const { body } of ext().calls) expect(body).not.toHaveProperty('metadata');
    });

    test('hooks/38 hooks/39 hooks/52 an answer without parameters clears them; a bad one or a failure keeps them', async () => {
      const id = await created({ customExtensionParams: { p: 1 } });
      const patch = () => server().api('PATCH', paramsPath(id), {});
      ext().answer('patch-params', [
        { status: 200, body: { customExtensionParams: [1] } },
        { status: 409, body: 'busy elsewhere' },
        { status: 502 },
        { status: 200, body: 'not JSON' },
        { status: 302, headers: { location: `${ext().url}/sandbox-hook/patch-params` } },
      ]);
      expect((await patch()).status).toBe(500);
      expect(await patch()).toMatchObject({
        status: 400,
        body: { message: expect.stringMatching(/409: busy elsewhere/) },
      });
      for (let count = 0; count < 3; count++) expect((await patch()).status).toBe(500);
      expect(await server().api('GET', paramsPath(id))).toEqual({ status: 200, body: { p: 1 } });
      expect(ext().of('patch-params')).toHaveLength(5);
      expect(await patch()).toEqual({ status: 200, body: {} });
      expect(await server().api('GET', paramsPath(id))).toEqual({ status: 200, body: {} });
    });

    test('hooks/40 hooks/41 hooks/42 only a running sandbox is patched, and a pause does not wait for it', async () => {
      const id = await created({ customExtensionParams: { p: 1 } });
      ext().answer('patch-params', 'hang');
      const patching = server().api('PATCH', paramsPath(id), {});
      await expect.poll(() => ext().of('patch-params').length).toBe(1);
      expect((await server().api('POST', `/sandboxes/${id}/pause`)).status).toBe(204);
      expect((await patching).status).toBe(409);
      ext().reset();
      expect((await server().api('PATCH', paramsPath(id), {})).status).toBe(409);
      expect(ext().calls).toEqual([]);
      expect(await server().api('GET', paramsPath(id))).toEqual({ status: 200, body: { p: 1 } });
      expect((await server().api('PATCH', paramsPath('inobody'), {})).status).toBe(404);
      expect((await server().api('GET', paramsPath('inobody'))).status).toBe(404);
    });
  });

  describe('without an extension, and where none is asked', () => {
    test('hooks/09 hooks/10 nothing is sent; parameters have no reader', async () => {
      await using alone = await start({ extensionUrl: undefined });
      const refused = await alone.api('POST', '/sandboxes', { templateID: 'base', customExtensionParams: { a: 1 } });
      expect(refused).toMatchObject({
        status: 400,
        body: { message: expect.stringContaining('customExtensionParams') },
      });
      expect((await alone.api('GET', '/v2/sandboxes')).body).toEqual([]);
      const id = idOf(await alone.api('POST', '/sandboxes', { templateID: 'base', customExtensionParams: {} }));
      expect((await alone.api('PATCH', paramsPath(id), { a: 1 })).status).toBe(400);
      expect(await alone.api('GET', paramsPath(id))).toEqual({ status: 200, body: {} });
      expect(ext().calls).toEqual([]);
    });

    test('a lying extension is a failure of the server: no JSON, endless bodies, redirects, closed sockets', async () => {
      ext().answer('start-resume', [
        { status: 307, headers: { location: `${ext().url}/sandbox-hook/start-resume` } },
        (request) => request.socket.destroy(),
        (_request, response) => {
          response.writeHead(500);
          const flood = setInterval(() => response.write('x'.repeat(65_536)), 1);
          response.on('close', () => clearInterval(flood));
        },
      ]);
      for (let count = 0; count < 3; count++) {
        const { status, body } = await create();
        expect(status).toBe(500);
        expect(JSON.stringify(body).length).toBeLessThan(5_000);
      }
      expect(ext().of('start-resume')).toHaveLength(3);
    });
  });
}
