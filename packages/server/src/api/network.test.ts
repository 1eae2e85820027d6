import { PlatformError } from '@agentenv/core';
import type { InjectOptions } from 'fastify';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

let front: TestApp;
beforeAll(async () => {
  front = await createTestApp();
});
afterAll(() => front[Symbol.asyncDispose]());

const call = (method: 'GET' | 'POST' | 'PUT', url: string, options: InjectOptions = {}) =>
  front.app.inject({ method, url, ...options, headers: { 'x-api-key': TEST_API_KEY, ...options.headers } });

describe('PUT /sandboxes/{id}/network', () => {
  let id: string;
  beforeEach(async () => {
    front.orchestrator.clear();
    const network = { allowPublicTraffic: false, denyOut: ['1.1.1.1'] };
    const payload = { templateID: 'base', network };
    id = (await call('POST', '/v2/sandboxes', { payload })).json().sandboxID;
    front.orchestrator.calls.length = 0;
  });
  const update = (payload: object) => call('PUT', `/sandboxes/${id}/network`, { payload });
  const detail = async () => (await call('GET', `/sandboxes/${id}`)).json();

  it('replaces all rules, canonical and without duplicates, and keeps who may come in', async () => {
    const body = {
      allow_internet_access: false,
      allowOut: ['8.8.8.8', '8.8.8.8/32', '2001:DB8::1'],
      denyOut: ['128.0.0.0/1', '10.1.2.3/8'],
    };
    const response = await update(body);
    expect(response.statusCode).toBe(204);
    expect(response.body).toBe('');
    expect(await detail()).toMatchObject({
      allowInternetAccess: false,
      network: {
        allowOut: ['8.8.8.8/32', '2001:db8::1/128'],
        denyOut: ['128.0.0.0/1', '10.0.0.0/8'],
        allowPublicTraffic: false,
      },
    });
  });

  it('clears what is left out, with an empty object, null values or no body', async () => {
    const bodies: InjectOptions[] = [
      {},
      { payload: {} },
      { payload: { allow_internet_access: null, allowOut: null, denyOut: null } },
    ];
    for (const body of bodies) {
      await update({ allow_internet_access: false, denyOut: ['9.9.9.9'] });
      expect((await call('PUT', `/sandboxes/${id}/network`, body)).statusCode).toBe(204);
      expect(await detail()).toMatchObject({
        allowInternetAccess: null,
        network: { allowOut: [], denyOut: [], allowPublicTraffic: false },
      });
    }
  });

  it.each([
    ["not supported: allowOut with the domain 'example.com'", { allowOut: ['example.com'] }],
    ["denyOut: 'example.com' is not an IP address or CIDR", { denyOut: ['example.com'] }],
    ["allowOut: '1.2.3.4/33' is not an IP address or CIDR", { allowOut: ['1.2.3.4/33'] }],
    ['allowOut must be of type array or null', { allowOut: '1.1.1.1' }],
    ['denyOut must NOT have more than 1000 items', { denyOut: Array.from({ length: 1001 }, () => '1.1.1.1') }],
    ['not supported: rules', { rules: { 'a.test': [{ transform: {} }] } }],
    ['not supported: egressProxy', { egressProxy: { address: 'a:1' } }],
    ['not supported: allowPublicTraffic', { allowPublicTraffic: true }],
    ['not supported: maskRequestHost', { maskRequestHost: 'a.test' }],
  ])('refuses with "%s" and changes nothing', async (message, payload) => {
    const response = await update(payload);
    expect(response.json()).toEqual({ code: 400, message });
    expect(response.statusCode).toBe(400);
    expect(front.orchestrator.calls).toEqual([]);
  });

  it('answers 404, 409 and 500 as the life cycle says', async () => {
    expect((await call('PUT', '/sandboxes/iaaaaaaaaaaaaaaaaaaaa/network', { payload: {} })).statusCode).toBe(404);
    for (const [code, status] of [
      ['conflict', 409],
      ['internal', 500],
    ] as const) {
      front.orchestrator.failNext(new PlatformError(code, 'no'));
      expect((await update({})).statusCode).toBe(status);
    }
  });
});
