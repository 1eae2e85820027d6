import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { renderConfigurationDocument } from './document.ts';
import { type ConfigSources, loadConfig, splitAddress } from './load.ts';
import { CONFIG_SCHEMA, type ConfigKey } from './schema.ts';

const REPOSITORY = join(import.meta.dirname, '../../../..');

function load(toml?: string, environment: ConfigSources['environment'] = {}) {
  return loadConfig({
    file: toml === undefined ? undefined : { path: '/etc/aenv/config.toml', text: toml },
    environment,
    workingDirectory: '/somewhere',
    installDirectory: '/opt/agentenv',
  });
}

describe('configuration', () => {
  it('has defaults for everything', () => {
    expect(load()).toMatchObject({
      api_addr: '0.0.0.0:8000',
      home_path: '/var/lib/aenv',
      deps_path: '/opt/agentenv/.aenv/artifacts',
      backend: 'auto',
      'orchestrator.default_sandbox_timeout_secs': 15,
      'orchestrator.default_sandbox_timeout_v2_secs': 300,
      'orchestrator.memory_commit_ratio': 0.15,
      'orchestrator.max_sandboxes': undefined,
      'team.slug': 'default',
    });
    expect(Object.keys(load()).toSorted()).toEqual(Object.keys(CONFIG_SCHEMA).toSorted());
  });

  it('reads tables and dotted keys alike', () => {
    const config = load(`
      network.uplink = "none"
      orchestrator.max_sandboxes = 7
      [pool]
      low_watermark = 0
      high_watermark = 0
      [pool.network]
      high_watermark = 9
      [sandbox_proxy]
      domains = ["sandboxes.test", "other.test:8443"]
    `);
    expect(config).toMatchObject({
      'network.uplink': 'none',
      'orchestrator.max_sandboxes': 7,
      'pool.low_watermark': 0,
      'pool.high_watermark': 0,
      'pool.network.high_watermark': 9,
      'sandbox_proxy.domains': ['sandboxes.test', 'other.test:8443'],
    });
  });

  it('takes webhooks with a secret each, and says what is wrong with others without their secrets', () => {
    const webhooks = (urls: readonly string[], secrets: readonly string[], more = '') =>
      load(`[webhooks]\nurls = ${JSON.stringify(urls)}\nsecrets = ${JSON.stringify(secrets)}\n${more}`);
    const secret = 'planted-secret-of-16';
    expect(
      webhooks(['https://a.test/hook?token=1', 'http://b.test'], [secret, `whsec_${'aA+/'.repeat(8)}`]),
    ).toMatchObject({
      'webhooks.urls': ['https://a.test/hook?token=1', 'http://b.test/'],
      'webhooks.events': expect.arrayContaining(['sandbox.lifecycle.killed']),
    });
    for (const [urls, secrets, more, message] of [
      [['https://a.test'], [], '', 'webhooks.secrets must have as many secrets as webhooks.urls'],
      [['https://a.test', 'https://a.test/'], [secret, secret], '', 'webhooks.urls must not have a URL twice'],
      [['https://a.test'], ['planted'], '', 'webhooks.secrets must be list of secret of 16 characters or more'],
      [['https://a.test'], ['whsec_planted-not-base64-at-all'], '', 'webhooks.secrets must be list of secret'],
      [['https://me:planted@a.test'], [secret], '', 'webhooks.urls must be list of http(s) URL'],
      [['ftp://a.test'], [secret], '', 'webhooks.urls must be list of http(s) URL'],
      [['https://a.test'], [secret], 'events = []', 'webhooks.events must not be empty'],
      [['https://a.test'], [secret], 'events = ["created"]', 'webhooks.events must be list of'],
    ] as const) {
      const attempt = () => webhooks(urls, secrets, more);
      expect(attempt).toThrow(message);
      expect(attempt).not.toThrow('planted');
    }
  });

  it('lets the environment win, unless it is empty', () => {
    const toml = 'api_addr = "127.0.0.1:1"\nsandbox_proxy.domains = ["a.test"]';
    const environment = { API_ADDR: '[::1]:8001', AENV_SANDBOX_PROXY_DOMAINS: 'b.test, c.test' };
    expect(load(toml, environment)).toMatchObject({
      api_addr: '[::1]:8001',
      'sandbox_proxy.domains': ['b.test', 'c.test'],
    });
    expect(load(toml, { API_ADDR: '', AENV_SANDBOX_PROXY_DOMAINS: ' ' })).toMatchObject({
      api_addr: '127.0.0.1:1',
      'sandbox_proxy.domains': ['a.test'],
    });
  });

  it('resolves paths: placeholders, then the directory of the file or the working directory', () => {
    expect(load('home_path = "data"\ndeps_path = "$AENV_HOME/deps"')).toMatchObject({
      home_path: '/etc/aenv/data',
      deps_path: '/etc/aenv/data/deps',
    });
    const tls = 'tls.addr = "[::]:443"\ntls.certificates = ["tls/a.pem"]\ntls.private_keys = ["$AENV_HOME/b.pem"]';
    expect(load(`home_path = "data"\n${tls}`)).toMatchObject({
      'tls.certificates': ['/etc/aenv/tls/a.pem'],
      'tls.private_keys': ['/etc/aenv/data/b.pem'],
    });
    expect(load('deps_path = "$AENV_RUNTIME"\nruntime_path = "/run/x"').deps_path).toBe('/run/x');
    expect(load('deps_path = "$AENV_HOMELESS/x"').deps_path).toBe('/etc/aenv/$AENV_HOMELESS/x');
    expect(load(undefined, { AENV_HOME_PATH: 'data' }).home_path).toBe('/somewhere/data');
  });

  it.each([
    ['nonsense = 1', 'unknown configuration key nonsense'],
    ['[orchestrator]\nmax_sandboxs = 1', 'orchestrator.max_sandboxs (did you mean orchestrator.max_sandboxes?)'],
    ['uplink = "none"', 'unknown configuration key uplink (did you mean network.uplink?)'],
    ['[pool.network.low_watermark]\nx = 1', 'configuration key pool.network.low_watermark must be integer'],
    ['pool = 1', 'unknown configuration key pool'],
    ['[unknown.table]\na = 1', 'unknown configuration key unknown'],
    ['backend = "firecracker"', 'configuration key backend must be auto or qemu or fake'],
    ['api_addr = "8000"', 'configuration key api_addr must be host:port'],
    ['api_addr = "localhost:70000"', 'configuration key api_addr has a port above 65535'],
    ['orchestrator.max_sandboxes = 0', 'configuration key orchestrator.max_sandboxes must be integer ≥ 1'],
    ['orchestrator.max_sandboxes = 1.5', 'must be integer ≥ 1'],
    ['orchestrator.max_sandboxes = "5"', 'must be integer ≥ 1'],
    ['orchestrator.memory_commit_ratio = 0', 'must be number > 0, ≤ 1'],
    ['orchestrator.memory_commit_ratio = inf', 'must be number > 0, ≤ 1'],
    [
      'orchestrator.pause_failure = "forget"',
      'configuration key orchestrator.pause_failure must be keep or filesystem or kill',
    ],
    ['orchestrator.default_auto_pause = "no"', 'must be boolean'],
    [
      'observability.sandbox_metrics_interval_secs = 60',
      'observability.sandbox_metrics_interval_secs must not be greater than observability.sandbox_metrics_idle_interval_secs',
    ],
    ['node_identity.cluster_id = "here"', 'node_identity.cluster_id must be UUID'],
    ['pool.low_watermark = 9', 'configuration key pool.low_watermark must not be greater than pool.high_watermark'],
    [
      'orchestrator.max_sandbox_timeout_secs = 10',
      'orchestrator.default_sandbox_timeout_secs must not be greater than',
    ],
    ['network.egress.always_denied_cidrs = ["10.0.0.0/8", "x"]', 'must be list of IP address or CIDR'],
    ['sandbox_proxy.domains = "a.test"', 'must be list of domain'],
    ['tls.addr = "127.0.0.1:443"', 'configuration key tls.certificates must not be empty when tls.addr is set'],
    ['tls.addr = "127.0.0.1:65536"\ntls.certificates = ["a"]\ntls.private_keys = ["b"]', 'tls.addr has a port above'],
    ['tls.certificates = ["a"]\ntls.private_keys = ["b"]', 'configuration key tls.addr must be set when there are'],
    ['tls.certificates = ["a"]', 'configuration key tls.private_keys must have as many files as tls.certificates'],
    ['tls.certificates = "a.pem"', 'configuration key tls.certificates must be list of path'],
    ['sandbox_proxy.max_connections = 501', 'configuration key sandbox_proxy.max_connections must be integer'],
    ['sandbox_proxy.trusted_proxies = ["proxy.test"]', 'must be list of IP address or CIDR'],
    ['home_path = ""', 'configuration key home_path must be path'],
    ['home_path = 1979-05-27', 'configuration key home_path must be path'],
    ['a = [', '/etc/aenv/config.toml:1:'],
  ])('refuses %j and says why', (toml, message) => {
    expect(() => load(toml)).toThrowError(
      expect.objectContaining({ code: 'invalid_argument', message: expect.stringContaining(message) }),
    );
  });

  it('names the variable whose value is wrong', () => {
    expect(() => load('', { AENV_BACKEND: 'docker' })).toThrowError(
      /configuration key backend \(from AENV_BACKEND\) must be/,
    );
  });

  it('never fails in another way, whatever the file holds', () => {
    const name = fc.constantFrom(...Object.keys(CONFIG_SCHEMA), 'pool', 'network', 'x', '"a.b"');
    const value = fc.oneof(
      fc.integer().map(String),
      fc.double().map(String),
      fc.string().map((text) => JSON.stringify(text)),
      fc.constantFrom('true', '[]', '[1, "a"]', '{}', '{ a = 1 }', 'nan', '1979-05-27', '9223372036854775807'),
    );
    fc.assert(
      fc.property(fc.array(fc.tuple(name, value), { maxLength: 4 }), (lines) => {
        try {
          load(lines.map(([key, text]) => `${key} = ${text}`).join('\n'));
        } catch (error) {
          expect(error).toMatchObject({ code: 'invalid_argument' });
        }
      }),
      { seed: 3, numRuns: 500 },
    );
  });

  it('takes every default as a value of its own kind', () => {
    for (const [name, { kind, default: standard }] of Object.entries<ConfigKey<unknown>>(CONFIG_SCHEMA)) {
      if (standard !== undefined) expect(kind.parse(standard), name).toEqual(standard);
    }
  });
});

describe('splitAddress', () => {
  it('separates host and port, brackets gone', () => {
    expect(splitAddress('[::1]:80')).toEqual({ host: '::1', port: 80 });
    expect(splitAddress('localhost:0')).toEqual({ host: 'localhost', port: 0 });
  });
});

describe('docs/configuration.md', () => {
  it('is what the schema says', async () => {
    expect(await readFile(join(REPOSITORY, 'docs/configuration.md'), 'utf8')).toBe(renderConfigurationDocument());
  });
});
