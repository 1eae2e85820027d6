import type { SandboxId } from '@agentenv/core';
import { sandboxRecord, snapshotRecord } from '@agentenv/core/testing';
import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import type { InjectOptions } from 'fastify';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, TEST_NODE, type TestApp } from '../testing/app.ts';
import { guestWithMetrics } from '../testing/guest-metrics.ts';
import { loadControlPlane, type Operation } from './document.ts';
import type { BuiltOperationId } from './operations.ts';

const ID = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const operations = new Map(loadControlPlane().map((operation) => [operation.id, operation]));

/** A request that succeeds and, where there is one, a request that fails, for every operation that is built. */
const EXAMPLES: Readonly<Record<BuiltOperationId, { good: InjectOptions[]; bad?: InjectOptions[] }>> = {
  getHealth: { good: [{ url: '/health' }] },
  getMetrics: { good: [{ url: '/metrics' }] },
  // A GET does not end: events.test.ts.
  streamEvents: { good: [{ method: 'HEAD', url: '/events' }], bad: [{ url: '/events?type=unknown' }] },
  createSandbox: {
    good: [
      { url: '/sandboxes', payload: { templateID: 'base' } },
      {
        url: '/sandboxes',
        payload: { templateID: 'base', secure: true, network: { allowPublicTraffic: false }, metadata: { a: 'b' } },
      },
    ],
    bad: [{ url: '/sandboxes', payload: {} }],
  },
  createSandboxV2: {
    good: [{ url: '/v2/sandboxes', payload: { templateID: 'base', envVars: { A: 'b' } } }],
    bad: [{ url: '/v2/sandboxes', payload: { templateID: 'unknown' } }],
  },
  listRunningSandboxes: { good: [{ url: '/sandboxes' }], bad: [{ url: '/sandboxes?metadata=%25' }] },
  listSandboxes: {
    good: [{ url: '/v2/sandboxes' }, { url: '/v2/sandboxes?limit=1&state=running,paused' }],
    bad: [{ url: '/v2/sandboxes?limit=0' }],
  },
  getSandbox: {
    good: [{ url: `/sandboxes/${ID}` }, { url: '/sandboxes/ibbbbbbbbbbbbbbbbbbbb' }],
    bad: [{ url: '/sandboxes/unknown' }],
  },
  deleteSandbox: { good: [{ url: `/sandboxes/${ID}` }], bad: [{ url: '/sandboxes/unknown' }] },
  pauseSandbox: {
    good: [{ url: `/sandboxes/${ID}/pause` }, { url: `/sandboxes/${ID}/pause`, payload: { memory: false } }],
    bad: [{ url: `/sandboxes/${ID}/pause`, payload: { memory: 'no' } }],
  },
  resumeSandbox: {
    good: [{ url: `/sandboxes/${ID}/resume`, payload: { timeout: 5 } }],
    bad: [{ url: `/sandboxes/${ID}/resume`, payload: { timeout: 0 } }],
  },
  forkSandbox: {
    good: [
      { url: `/sandboxes/${ID}/fork` },
      { url: `/sandboxes/${ID}/fork`, payload: { count: 3, timeout: 60 } },
      { url: `/sandboxes/${ID}/fork`, payload: { count: null, timeout: null } },
    ],
    bad: [{ url: `/sandboxes/${ID}/fork`, payload: { count: 0 } }],
  },
  connectSandbox: {
    good: [{ url: `/sandboxes/${ID}/connect` }, { url: '/sandboxes/ibbbbbbbbbbbbbbbbbbbb/connect' }],
    bad: [{ url: `/sandboxes/${ID}/connect`, payload: { timeout: 0 } }],
  },
  connectSandboxV2: {
    good: [{ url: `/v2/sandboxes/${ID}/connect`, payload: {} }],
    bad: [{ url: '/v2/sandboxes/unknown/connect' }],
  },
  setSandboxTimeout: {
    good: [{ url: `/sandboxes/${ID}/timeout`, payload: { timeout: 5 } }],
    bad: [{ url: `/sandboxes/${ID}/timeout`, payload: { timeout: '5' } }],
  },
  refreshSandbox: {
    good: [{ url: `/sandboxes/${ID}/refreshes` }],
    bad: [{ url: `/sandboxes/${ID}/refreshes`, payload: { duration: 3601 } }],
  },
  getCustomExtensionParams: {
    good: [{ url: `/sandboxes/${ID}/custom-extension-params` }],
    bad: [{ url: '/sandboxes/unknown/custom-extension-params' }],
  },
  updateCustomExtensionParams: {
    good: [{ url: `/sandboxes/${ID}/custom-extension-params`, payload: { a: { b: [1] } } }],
    bad: [{ url: `/sandboxes/${ID}/custom-extension-params`, payload: [1] as unknown as object }],
  },
  updateSandboxNetwork: {
    good: [
      { url: `/sandboxes/${ID}/network` },
      {
        url: `/sandboxes/${ID}/network`,
        payload: { allow_internet_access: false, allowOut: ['8.8.8.8'], denyOut: [] },
      },
    ],
    bad: [{ url: `/sandboxes/${ID}/network`, payload: { denyOut: ['example.com'] } }],
  },
  createSnapshot: {
    good: [{ url: `/sandboxes/${ID}/snapshots` }, { url: `/sandboxes/${ID}/snapshots`, payload: { name: 'data:v1' } }],
    bad: [{ url: `/sandboxes/${ID}/snapshots`, payload: { name: 'not a name' } }],
  },
  listSnapshots: {
    good: [{ url: '/snapshots' }, { url: `/snapshots?sandboxID=${ID}&name=default/data:default&limit=1` }],
    bad: [{ url: '/snapshots?limit=0' }],
  },
  getSnapshot: { good: [{ url: '/snapshots/default%2Fdata%3Adefault' }], bad: [{ url: '/snapshots/unknown' }] },
  deleteTemplate: { good: [{ url: '/templates/default%2Fdata%3Adefault' }], bad: [{ url: '/templates/unknown' }] },
  listTemplates: { good: [{ url: '/templates?teamID=x' }] },
  listTemplatesV2: { good: [{ url: '/v2/templates?limit=1' }], bad: [{ url: '/v2/templates?limit=x' }] },
  getTemplate: { good: [{ url: '/templates/base' }], bad: [{ url: '/templates/unknown' }] },
  getSandboxMetrics: {
    good: [{ url: `/sandboxes/${ID}/metrics` }, { url: `/sandboxes/${ID}/metrics?start=0&end=253402300799` }],
    bad: [{ url: '/sandboxes/unknown/metrics' }],
  },
  getSandboxesMetrics: {
    good: [{ url: `/sandboxes/metrics?sandbox_ids=${ID},unknown` }],
    bad: [{ url: '/sandboxes/metrics' }],
  },
  getSandboxLogs: {
    good: [{ url: `/sandboxes/${ID}/logs` }, { url: `/sandboxes/${ID}/logs?start=1&limit=10` }],
    bad: [{ url: '/sandboxes/unknown/logs' }],
  },
  getSandboxLogsV2: {
    good: [{ url: `/v2/sandboxes/${ID}/logs` }, { url: `/v2/sandboxes/${ID}/logs?direction=forward&level=info` }],
    bad: [{ url: `/v2/sandboxes/${ID}/logs?direction=sideways` }],
  },
  listTeams: { good: [{ url: '/teams' }] },
  listNodes: { good: [{ url: '/nodes' }, { url: '/nodes?clusterID=another' }] },
  getNode: { good: [{ url: `/nodes/${TEST_NODE.nodeId}` }], bad: [{ url: '/nodes/unknown' }] },
  getTemplateByAlias: { good: [{ url: '/templates/aliases/base' }], bad: [{ url: '/templates/aliases/unknown' }] },
};

const ajv = new Ajv2020({ allErrors: true, allowUnionTypes: true });
formats.default(ajv);
ajv.addVocabulary(['x-unsupported', 'x-supported-values']);

let front: TestApp;
beforeAll(async () => {
  front = await createTestApp({ domains: ['sandboxes.test'] });
  front.sandboxMetrics.attach(ID, guestWithMetrics());
  front.sandboxLogs.open(ID);
  front.sandboxLogs.append(ID, { level: 'info', logger: 'process', message: 'hello', fields: { pid: '1' } });
});
beforeEach(() => {
  front.orchestrator.clear();
  front.orchestrator.put(sandboxRecord({ id: ID, metadata: { a: 'b' } }));
  front.orchestrator.snapshots.put(snapshotRecord());
  front.orchestrator.put(
    sandboxRecord({
      id: 'ibbbbbbbbbbbbbbbbbbbb' as SandboxId,
      state: 'paused',
      alias: undefined,
      secure: false,
      deadline: undefined,
      onTimeout: 'pause',
      network: {
        allowInternetAccess: true,
        allowOut: [],
        denyOut: ['1.1.1.1/32'],
        allowPublicTraffic: false,
        maskRequestHost: undefined,
      },
    }),
  );
});
afterAll(() => front[Symbol.asyncDispose]());

async function answer(operation: Operation, request: InjectOptions) {
  const response = await front.app.inject({
    method: operation.method,
    ...request,
    headers: { 'x-api-key': TEST_API_KEY },
  });
  return {
    response,
    schema: operation.responses.get(String(response.statusCode)) ?? operation.responses.get('default'),
  };
}

/** The schema with every object closed, so that a field the document does not have is found too. */
function closed(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(closed);
  if (typeof schema !== 'object' || schema === null) return schema;
  const copy = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, closed(value)]));
  return 'properties' in copy ? { additionalProperties: false, ...copy } : copy;
}

describe('every built operation', () => {
  const built = [...operations.values()].filter((operation) => operation.built);

  it('has examples', () => {
    expect(Object.keys(EXAMPLES).toSorted()).toEqual(built.map(({ id }) => id).toSorted());
  });

  it.each(Object.keys(EXAMPLES) as BuiltOperationId[])('%s answers what the document says', async (id) => {
    const operation = operations.get(id);
    if (operation === undefined) throw new Error(`${id} is not in the document`);
    for (const request of EXAMPLES[id].good) {
      const { response, schema } = await answer(operation, request);
      expect(response.statusCode, `${id} ${response.body}`).toBeLessThan(300);
      if (!operation.responses.has(String(response.statusCode))) {
        expect(response.headers['content-type'] ?? '').not.toContain('json');
        continue;
      }
      const validate = ajv.compile(closed(schema) as object);
      expect(validate(response.json()) ? [] : validate.errors).toEqual([]);
    }
    for (const request of EXAMPLES[id].bad ?? []) {
      const { response, schema } = await answer(operation, request);
      expect(response.statusCode).toBeGreaterThanOrEqual(400);
      const validate = ajv.compile(closed(schema) as object);
      expect(validate(response.json()) ? [] : validate.errors).toEqual([]);
      expect(response.json().code).toBe(response.statusCode);
    }
  });
});
