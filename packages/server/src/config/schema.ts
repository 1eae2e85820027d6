import { DEFAULT_ADMISSION_LIMITS, DEFAULT_ALWAYS_DENIED, LIFECYCLE_EVENT_TYPES } from '@agentenv/core';
import { DEFAULT_INTERNAL_NETWORKS } from '@agentenv/runtime';
import {
  baseUrl,
  boolean,
  cidr,
  domain,
  httpUrl,
  integer,
  type Kind,
  list,
  listenAddress,
  number,
  oneOf,
  path,
  signingSecret,
  text,
} from './kinds.ts';

/** One configuration key: what it may be, what it is when nobody says, and what it is for. */
export interface ConfigKey<Value, Default extends Value | undefined = Value | undefined> {
  readonly kind: Kind<Value>;
  /** undefined: not set. */
  readonly default: Default;
  /** Environment variable that overrides the file; an empty one counts as not there. */
  readonly env: string | undefined;
  /** For the documentation: what it means, units, consequences. */
  readonly meaning: string;
}

function key<Value, Default extends Value | undefined>(
  kind: Kind<Value>,
  standard: Default,
  meaning: string,
  env?: string,
): ConfigKey<Value, Default> {
  return { kind, default: standard, env, meaning };
}

/** Seconds of 30 days. */
const THIRTY_DAYS = 2_592_000;

/**
 * Every configuration key by its dotted name in the TOML file; the same words as in the API, metrics and logs.
 * `docs/configuration.md` is generated from this table.
 */
export const CONFIG_SCHEMA = {
  api_addr: key(
    listenAddress(),
    '0.0.0.0:8000',
    'Where the server listens, plain HTTP: control plane, metrics and the traffic of all sandboxes.',
    'API_ADDR',
  ),
  home_path: key(
    path(),
    '/var/lib/aenv',
    'Durable data: ledger, captured templates, disks, secrets. Belongs to one server at a time.',
    'AENV_HOME_PATH',
  ),
  runtime_path: key(
    path(),
    '/run/aenv',
    'Sockets and network namespaces; gone after a reboot. At most 80 bytes long. Belongs to one server at a time.',
    'AENV_RUNTIME_PATH',
  ),
  deps_path: key(
    path(),
    '$AENV_INSTALL/.aenv/artifacts',
    'What `./aenv setup` prepared: kernel, guest agent, root file systems.',
    'AENV_DEPS_PATH',
  ),
  'tls.addr': key(
    listenAddress(),
    undefined,
    'Where the server listens with TLS as well, HTTP/2 and HTTP/1.1: the same as behind `api_addr`. E2B clients that are given a domain need it.',
    'AENV_TLS_ADDR',
  ),
  'tls.certificates': key(
    list(path()),
    [],
    'PEM files with certificates and their chains; the first one valid for the name a client asks for is used, else the first. Read anew when they change.',
  ),
  'tls.private_keys': key(list(path()), [], 'PEM files with their keys, in the same order.'),
  'log.format': key(
    oneOf('auto', 'compact', 'pretty', 'json'),
    'auto',
    'Form of the log on standard output; `auto` is `pretty` on a terminal and `json` elsewhere.',
    'AENV_LOG_FORMAT',
  ),
  'log.level': key(
    oneOf('debug', 'info', 'warn', 'error'),
    'info',
    'Least important messages that are written.',
    'AENV_LOG_LEVEL',
  ),
  drain_timeout_secs: key(
    integer({ minimum: 0, maximum: 20 }),
    10,
    'How long requests of the control plane that are under way may take to finish when the server ends, seconds; new ones are answered 503.',
  ),
  'observability.enabled': key(
    boolean(),
    true,
    'Whether `/nodes` tells about this host; without it there are no nodes to be seen.',
  ),
  'observability.sandbox_metrics_interval_secs': key(
    integer({ minimum: 1, maximum: 3600 }),
    5,
    'Between samples of what a sandbox uses, while it is busy or its metrics are read, seconds.',
  ),
  'observability.sandbox_metrics_idle_interval_secs': key(
    integer({ minimum: 1, maximum: 3600 }),
    30,
    'The same while it is neither, seconds; every sample wakes its machine up.',
  ),
  'observability.sandbox_logs_retention_secs': key(
    integer({ minimum: 0, maximum: 604_800 }),
    3600,
    'How long the log of a sandbox that has ended can still be read, seconds; logs are kept in memory.',
  ),
  'node_identity.node_id': key(
    text('name', /^[\w.-]{1,253}$/),
    undefined,
    'Name of this host in `/nodes`; its host name when not set.',
    'AENV_NODE_ID',
  ),
  'node_identity.cluster_id': key(
    text('UUID', /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/),
    '00000000-0000-0000-0000-000000000000',
    'Cluster this host belongs to, a UUID.',
    'AENV_CLUSTER_ID',
  ),
  'node_identity.service_instance_id': key(
    text('name', /^[\w.-]{1,253}$/),
    undefined,
    'Name of this run of the server in `/nodes`; a new UUID with every start when not set.',
    'AENV_SERVICE_INSTANCE_ID',
  ),
  backend: key(
    oneOf('auto', 'qemu', 'fake'),
    'auto',
    'What runs sandboxes; `auto` is `qemu`. `fake` has no isolation at all and is for tests of clients.',
    'AENV_BACKEND',
  ),
  'qemu.accelerator': key(
    oneOf('auto', 'kvm', 'tcg'),
    'auto',
    'How virtual machines execute: `kvm`, or `tcg` (emulation, several times slower); `auto` takes KVM where it works.',
  ),
  'machine.vcpu_count': key(integer({ minimum: 1, maximum: 64 }), 2, 'Virtual CPUs of a sandbox of `base`.'),
  'machine.mem_size_mib': key(
    integer({ minimum: 128, maximum: 1_048_576 }),
    1024,
    'Memory of a sandbox of `base`, MiB; the host gives what is touched.',
  ),
  'machine.disk_size_mib': key(
    integer({ minimum: 1024, maximum: 16_777_216 }),
    10_240,
    'Size of the writable disk of a sandbox of `base`, MiB; sparse.',
  ),
  'pool.low_watermark': key(
    integer({ minimum: 0, maximum: 256 }),
    2,
    'Sandboxes of `base` kept started in advance when nobody asks for any.',
  ),
  'pool.high_watermark': key(
    integer({ minimum: 0, maximum: 256 }),
    8,
    'Sandboxes kept started in advance at most, under demand; 0 for none.',
  ),
  'pool.engines.low_watermark': key(
    integer({ minimum: 0, maximum: 256 }),
    2,
    'Virtual machine engines kept started in advance, for resumes and forks of sandboxes of `base`, when nobody asks for any.',
  ),
  'pool.engines.high_watermark': key(
    integer({ minimum: 0, maximum: 256 }),
    8,
    'Engines kept started in advance at most, under demand; 0 for none.',
  ),
  'pool.network.low_watermark': key(
    integer({ minimum: 0, maximum: 1024 }),
    4,
    'Network slots below which the pool of them is filled again.',
  ),
  'pool.network.high_watermark': key(
    integer({ minimum: 0, maximum: 1024 }),
    16,
    'Network slots the pool is filled up to.',
  ),
  'network.uplink': key(
    oneOf('pasta', 'none'),
    'pasta',
    'How sandboxes reach the internet: user-mode forwarding, or `none` (nothing leaves the host unless the operator attaches an interface to the gateway namespace).',
  ),
  'network.dns_servers': key(
    list(text('IP address', /^[0-9a-fA-F.:]+$/)),
    [],
    'Resolvers sandboxes use through their gateway; those of the host when empty.',
  ),
  'network.uid_base': key(
    integer({ minimum: 1000, maximum: 2_000_000_000 }),
    700_000,
    'The engine of network slot N runs as user and group `network.uid_base` + N; none of them may be used for anything else.',
  ),
  'network.egress.always_denied_cidrs': key(
    list(cidr()),
    DEFAULT_ALWAYS_DENIED,
    'Ranges no sandbox ever reaches, whatever its own rules say.',
  ),
  'network.internal.host_interaction_cidr': key(
    cidr(),
    DEFAULT_INTERNAL_NETWORKS.hostInteractionCidr,
    'Addresses inside the slots for services of the operator, one per slot; at least 32768.',
  ),
  'network.internal.veth_cidr': key(
    cidr(),
    DEFAULT_INTERNAL_NETWORKS.vethCidr,
    'IPv4 addresses between the gateway and the slots; at least 65536.',
  ),
  'network.internal.veth_cidr6': key(
    cidr(),
    DEFAULT_INTERNAL_NETWORKS.vethCidr6,
    'IPv6 addresses between the gateway and the slots; at least 65536.',
  ),
  'orchestrator.default_sandbox_timeout_secs': key(
    integer({ minimum: 1 }),
    15,
    'Timeout of a sandbox when a client of the v1 routes gives none, seconds.',
  ),
  'orchestrator.default_sandbox_timeout_v2_secs': key(
    integer({ minimum: 1 }),
    300,
    'Timeout of a sandbox when a client of the v2 routes gives none, seconds.',
  ),
  'orchestrator.max_sandbox_timeout_secs': key(
    integer({ minimum: 1, maximum: 315_360_000 }),
    THIRTY_DAYS,
    'Longest timeout a client may ask for, seconds.',
  ),
  'orchestrator.default_auto_pause': key(
    boolean(),
    false,
    'Whether the timeout pauses a sandbox when the client does not say.',
  ),
  'orchestrator.pause_failure': key(
    oneOf('keep', 'filesystem', 'kill'),
    'keep',
    'What becomes of a sandbox its timeout could not pause in a minute: `keep` lets it run until somebody sets a timeout, `filesystem` pauses it without its memory, `kill` ends it.',
  ),
  'orchestrator.auto_evict_interval_ms': key(
    integer({ minimum: 100, maximum: 60_000 }),
    1000,
    'How often timeouts are compared with the wall clock at least, milliseconds.',
  ),
  'orchestrator.memory_commit_ratio': key(
    number({ above: 0, maximum: 1 }),
    DEFAULT_ADMISSION_LIMITS.memoryCommitRatio,
    'Part of a sandbox’s memory that is counted against the memory of the host minus 2 GiB.',
  ),
  'orchestrator.disk_commit_ratio': key(
    number({ minimum: 0, maximum: 1 }),
    DEFAULT_ADMISSION_LIMITS.diskCommitRatio,
    'Part of a sandbox’s disk that is counted against the free space of `home_path`.',
  ),
  'orchestrator.max_sandboxes': key(
    integer({ minimum: 1 }),
    undefined,
    'Sandboxes that may exist at the same time; without it memory and disk are the limit.',
  ),
  'sandbox.access_token_hash_seed': key(
    text(),
    undefined,
    'Secret all sandbox tokens are derived from; without it one is made and kept in `home_path`.',
    'AENV_SANDBOX_ACCESS_TOKEN_HASH_SEED',
  ),
  'sandbox_proxy.domains': key(
    list(domain()),
    [],
    'Domains whose names `<port>-<sandboxID>.<domain>` lead to this server; clients get the first. A port may follow if clients need one. Without any, names of that form lead to sandboxes in every domain.',
    'AENV_SANDBOX_PROXY_DOMAINS',
  ),
  'sandbox_proxy.max_connections': key(
    integer({ minimum: 1, maximum: 500 }),
    256,
    'Connections from outside the ports of one sandbox may have at once; more are answered 429. Its guest agent takes 512.',
  ),
  'sandbox_proxy.idle_timeout_secs': key(
    integer({ minimum: 0, maximum: 2_000_000 }),
    3600,
    'Silence in both directions after which a connection to a port of a sandbox is broken off, seconds; 0 for never.',
  ),
  'sandbox_proxy.trusted_proxies': key(
    list(cidr()),
    ['127.0.0.0/8', '::1/128'],
    'Whoever connects from these addresses may say with `X-Forwarded-For`, `-Host` and `-Proto` whom it connects for; from others these headers are replaced.',
  ),
  'custom_extension.url': key(
    baseUrl(),
    undefined,
    'The operator’s [custom extension](custom-extension.md), which is asked before a sandbox starts and told when it has stopped; blank for none.',
    'AENV_CUSTOM_EXTENSION_URL',
  ),
  'custom_extension.timeout_ms': key(
    integer({ minimum: 1, maximum: 30_000 }),
    5000,
    'Longest single call of the custom extension, milliseconds.',
  ),
  'webhooks.urls': key(
    list(httpUrl()),
    [],
    'Where [lifecycle events](events.md) are sent to. `https` everywhere but on a network that is trusted.',
    'AENV_WEBHOOK_URLS',
  ),
  'webhooks.secrets': key(
    list(signingSecret()),
    [],
    'What they are signed with, one secret for every URL in the same order; `whsec_` in front of base64, or any text.',
    'AENV_WEBHOOK_SECRETS',
  ),
  'webhooks.events': key(list(oneOf(...LIFECYCLE_EVENT_TYPES)), LIFECYCLE_EVENT_TYPES, 'Which events are sent.'),
  'webhooks.timeout_ms': key(
    integer({ minimum: 100, maximum: 60_000 }),
    10_000,
    'Longest single attempt to send an event, milliseconds.',
  ),
  'webhooks.max_attempts': key(
    integer({ minimum: 1, maximum: 100 }),
    12,
    'Attempts to send an event before it becomes a dead letter. Waits between them double from 1 s to 5 min, half of each random: 12 take a quarter of an hour.',
  ),
  'team.slug': key(
    text('lower-case name', /^[a-z0-9_-]{1,64}$/),
    'default',
    'Namespace in full template names, `<team.slug>/<name>`.',
  ),
} as const satisfies Record<string, ConfigKey<unknown>>;

export type ConfigName = keyof typeof CONFIG_SCHEMA;

type ValueOf<Key> = Key extends { readonly kind: Kind<infer Value>; readonly default: infer Default }
  ? undefined extends Default
    ? Value | undefined
    : Value
  : never;

/** A complete configuration: every key by its dotted name, paths absolute. */
export type Config = { readonly [Name in ConfigName]: ValueOf<(typeof CONFIG_SCHEMA)[Name]> };
