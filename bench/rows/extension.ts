import { startExampleExtension } from '../../e2e/example-extension.ts';
import type { TestServer } from '../../e2e/lib/server.ts';
import type { Bench, BenchContext, Measured } from '../lib/row.ts';
import { benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const PARAMS = { vpn: 'on', accounts: ['alpha', 'beta'] };
const METADATA = { team: 'alpha' };
const HEADERS = { 'content-type': 'application/json' };

/** One request whose answer is read; throws unless it is of that status. */
async function call(
  { api }: Pick<TestServer, 'api'>,
  status: number,
  [method, path, body]: readonly [method: string, path: string, body?: object],
): Promise<string> {
  const init = body === undefined ? { method } : { method, headers: HEADERS, body: JSON.stringify(body) };
  const response = await api(path, init);
  const text = await response.text();
  if (response.status !== status) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text;
}

async function create(server: TestServer, params: object): Promise<string> {
  const body = { templateID: 'base', timeout: 600, metadata: METADATA, ...params };
  return (JSON.parse(await call(server, 201, ['POST', '/sandboxes', body])) as { sandboxID: string }).sandboxID;
}

/** Milliseconds of a create, call → 201, of a sandbox that is killed afterwards. */
async function createOnce(server: TestServer, params: object): Promise<number> {
  const { value, ms } = await timed(() => create(server, params));
  await call(server, 204, ['DELETE', `/sandboxes/${value}`]);
  return ms;
}

async function run({ progress, effort }: BenchContext): Promise<readonly Measured[]> {
  await using service = await startExampleExtension(0, () => undefined);
  await using alone = await benchServer(NO_POOL);
  await using asking = await benchServer(`${NO_POOL}\ncustom_extension.url = "${service.url}"`);
  const withParams = { customExtensionParams: PARAMS };

  progress('creates, with and without an extension in turns');
  const creates = Math.max(5, Math.round(20 * effort));
  for (const [server, params] of [
    [alone, {}],
    [asking, withParams],
  ] as const) {
    await createOnce(server, params);
  }
  const without: number[] = [];
  const asked = await repeat(creates, async () => {
    without.push(await createOnce(alone, {}));
    return await createOnce(asking, withParams);
  });

  progress('patches of parameters');
  const id = await create(asking, withParams);
  const path = `/sandboxes/${id}/custom-extension-params`;
  const direct = async (): Promise<void> => {
    const body = JSON.stringify({ sandboxId: id, patch: PARAMS, metadata: METADATA });
    const response = await fetch(`${service.url}/sandbox-hook/patch-params`, {
      method: 'POST',
      headers: { ...HEADERS, connection: 'close' },
      body,
    });
    await response.text();
  };
  const floor: number[] = [];
  const patched = await repeat(Math.max(50, Math.round(200 * effort)), async () => {
    floor.push((await timed(() => call(asking, 200, ['GET', path]))).ms + (await timed(direct)).ms);
    return (await timed(() => call(asking, 200, ['PATCH', path, PARAMS]))).ms;
  });
  await call(asking, 204, ['DELETE', `/sandboxes/${id}`]);
  return [
    {
      name: 'create cold with an extension, beside one without',
      ...{ unit: 'ms', samples: asked, floor: without },
      budget: '≤ 1.05 × floor + 10 ms',
      ok: ({ p50, floor: alone50 }) => p50 <= 1.05 * alone50 + 10,
    },
    {
      name: 'PATCH of parameters, beside a GET of them and the same call to the extension',
      ...{ unit: 'ms', samples: patched, floor },
      budget: '≤ 2 × floor + 5 ms',
      ok: ({ p50, floor: bare }) => p50 <= 2 * bare + 5,
    },
  ];
}

/** What a custom extension that answers at once adds to a create, and to a change of parameters. */
export const extension: Bench = {
  name: 'extension',
  what: 'creates with and without a custom extension in turns; a patch of parameters beside a GET and the bare call',
  run,
};
