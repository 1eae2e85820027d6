import type { IncomingMessage } from 'node:http';
import { describe, expect, it } from 'vitest';
import { createRouting, type Routing } from './routing.ts';

const ID = 'iaaaaaaaaaaaaaaaaaaaa';
const E2B = { 'e2b-sandbox-id': ID, 'e2b-sandbox-port': '49983' };
const OWN = { 'x-agentenv-sandbox-id': ID, 'x-agentenv-target-port': '49983' };

function route(url: string, headers: Record<string, string> = {}, domains: string[] = ['sandboxes.test']): Routing {
  return createRouting(domains)({ url, headers: { host: '127.0.0.1:8000', ...headers } } as unknown as IncomingMessage);
}

describe('routing', () => {
  it('leaves requests without any sign of a sandbox to the control plane', () => {
    for (const url of ['/', '/health', '/sandboxes', '/proxyfoo', '/v2/proxy', '*', '/files?path=/proxy']) {
      expect(route(url)).toEqual({ kind: 'control-plane' });
    }
    for (const host of ['api.sandboxes.test', 'sandboxes.test', 'a-b.other.test', '49983-x.deep.sandboxes.test']) {
      expect(route('/health', { host })).toEqual({ kind: 'control-plane' });
    }
  });

  it('follows routing headers on every path', () => {
    for (const url of ['/health', '/sandboxes', '/v2/sandboxes?limit=1', '/metrics', '/files?path=a%2Fb', '/']) {
      expect(route(url, E2B)).toEqual({
        kind: 'sandbox',
        family: 'e2b',
        source: 'proxy_header',
        sandboxId: ID,
        port: 49983,
        url,
      });
      expect(route(url, OWN)).toMatchObject({ kind: 'sandbox', family: 'agentenv', source: 'proxy_header', url });
    }
  });

  it('takes the headers whatever the host is called', () => {
    for (const host of ['localhost:3000', '[::1]:8000', 'sandbox.e2b.test', 'example.com']) {
      expect(route('/', { host, ...E2B })).toMatchObject({ kind: 'sandbox', sandboxId: ID });
    }
  });

  it('removes the prefix and keeps the rest as it is', () => {
    for (const [url, inside] of [
      ['/proxy', '/'],
      ['/proxy/', '/'],
      ['/proxy?a=1', '/?a=1'],
      ['/proxy//a%2Fb//c?x=%20', '//a%2Fb//c?x=%20'],
    ] as const) {
      for (const headers of [E2B, OWN]) {
        expect(route(url, headers)).toMatchObject({ family: 'agentenv', source: 'proxy_prefix', url: inside });
      }
    }
  });

  it('takes the host form of a configured domain, before headers', () => {
    for (const host of [
      `3000-${ID}.sandboxes.test`,
      `3000-${ID}.SANDBOXES.test:8443`,
      `3000-${ID}.sandboxes.test.`,
      `3000-${ID}.sandboxes.test.:80`,
    ]) {
      expect(route('/proxy/x', { host, ...OWN })).toEqual({
        kind: 'sandbox',
        family: 'e2b',
        source: 'proxy_host',
        sandboxId: ID,
        port: 3000,
        url: '/proxy/x',
      });
    }
    expect(route('/', { host: `3000-${ID}.b.test` }, ['a.test', 'b.test:8443'])).toMatchObject({ sandboxId: ID });
    expect(route('/', { host: '3000-a-b-c.sandboxes.test' })).toMatchObject({ sandboxId: 'a-b-c', port: 3000 });
  });

  it('takes the host form of any domain when none is configured, if it has an id of ours', () => {
    for (const host of [`3000-${ID}.e2b.app`, `3000-${ID}.localhost:8000`, `3000-${ID.toUpperCase()}.a.b.test.`]) {
      expect(route('/x', { host }, [])).toMatchObject({ source: 'proxy_host', sandboxId: ID, port: 3000, url: '/x' });
    }
    for (const host of [
      '10-0-0-1.pods.test',
      `3000-${ID}`,
      `3000-${ID}.`,
      `0-${ID}.test`,
      `x-${ID}.test`,
      '3000-iabc.test',
    ]) {
      expect(route('/', { host }, [])).toEqual({ kind: 'control-plane' });
    }
  });

  it.each([
    ['x-y.sandboxes.test', 'the port in front of the first dash is not a port number'],
    ['0-abc.sandboxes.test', 'the port in front of the first dash is not a port number'],
    ['70000-abc.sandboxes.test', 'the port in front of the first dash is not a port number'],
    ['3000-.sandboxes.test', 'the sandbox id behind the first dash is not valid'],
    ['3000-a%b.sandboxes.test', 'the sandbox id behind the first dash is not valid'],
  ])('refuses the host %s', (host, reason) => {
    expect(route('/', { host })).toEqual({
      kind: 'bad',
      family: 'e2b',
      source: 'proxy_host',
      reason: `invalid sandbox data-plane host: ${reason}`,
    });
  });

  it.each([
    [{ 'e2b-sandbox-id': ID }, 'e2b', 'missing target port routing header'],
    [{ 'e2b-sandbox-port': '80' }, 'e2b', 'missing sandbox routing header'],
    [{ ...E2B, 'e2b-sandbox-port': 'http' }, 'e2b', 'invalid target port routing header'],
    [{ ...E2B, 'e2b-sandbox-port': '65536' }, 'e2b', 'invalid target port routing header'],
    [{ ...E2B, 'e2b-sandbox-port': '-1' }, 'e2b', 'invalid target port routing header'],
    [{ ...E2B, 'e2b-sandbox-id': '../x' }, 'e2b', 'invalid sandbox routing header'],
    [{ ...E2B, 'e2b-sandbox-id': '' }, 'e2b', 'invalid sandbox routing header'],
    [{ ...E2B, 'e2b-sandbox-id': 'x'.repeat(129) }, 'e2b', 'invalid sandbox routing header'],
    [{ 'x-agentenv-sandbox-id': ID }, 'agentenv', 'missing target port routing header'],
    [{ 'x-agentenv-target-port': '80' }, 'agentenv', 'missing sandbox routing header'],
  ] as const)('refuses the headers %j', (headers, family, reason) => {
    expect(route('/', headers)).toEqual({ kind: 'bad', family, source: 'proxy_header', reason });
  });

  it('follows the envd token of a request that has nothing else and no API key', () => {
    const token = { 'x-access-token': 'a-token' };
    expect(route('/files?path=a', token)).toEqual({ kind: 'token', token: 'a-token', url: '/files?path=a' });
    expect(route('/health', { ...token, ...E2B })).toMatchObject({ kind: 'sandbox', sandboxId: ID });
    expect(route('/health', { ...token, 'x-api-key': 'k' })).toEqual({ kind: 'control-plane' });
    expect(route('/health', { 'x-access-token': '' })).toEqual({ kind: 'control-plane' });
  });

  it('wants headers with the prefix', () => {
    expect(route('/proxy/x')).toEqual({
      kind: 'bad',
      family: 'agentenv',
      source: 'proxy_prefix',
      reason: 'missing sandbox routing header',
    });
  });

  it('takes the host of the request line or of HTTP/2 before the header', () => {
    const host = `3000-${ID}.sandboxes.test`;
    expect(route(`http://${host}/a`, { host: 'x.test' })).toMatchObject({ source: 'proxy_host', url: '/a' });
    expect(route('http://x.test/a', { host })).toEqual({ kind: 'control-plane' });
    expect(route('/a', { ':authority': `${host}:8443` })).toMatchObject({ source: 'proxy_host', sandboxId: ID });
    expect(route('*', { host })).toMatchObject({ source: 'proxy_host', url: '*' });
  });

  it('reads whole URLs as forward proxies get them', () => {
    expect(route('http://host.test/proxy/a?b=1', OWN)).toMatchObject({ url: '/a?b=1' });
    expect(route('http://host.test', E2B)).toMatchObject({ url: '/' });
    expect(route('http://host.test?x', E2B)).toMatchObject({ url: '/?x' });
  });
});
