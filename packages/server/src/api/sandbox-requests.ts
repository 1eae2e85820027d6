import {
  canonicalRules,
  type ExtensionParams,
  type NetworkPolicy,
  PlatformError,
  parseCidr,
  parseMetadataFilter,
} from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { CreateSandbox, EgressRules, ListFilter } from '../orchestrator/orchestrator.ts';
import { isMaskRequestHost } from '../proxy/request-host.ts';
import type { OperationInput } from './operations.ts';

type NewSandbox = components['schemas']['NewSandbox'];
type NewSandboxV2 = components['schemas']['NewSandboxV2'];

/** The durations requests are measured by, seconds. */
export interface TimeoutRules {
  /** Of the v1 routes, when the client gives none. */
  readonly defaultSeconds: number;
  /** Of the v2 routes, when the client gives none. */
  readonly defaultV2Seconds: number;
  readonly maximumSeconds: number;
  /** Whether the timeout pauses a sandbox when the client does not say. */
  readonly autoPause: boolean;
}

/** Most bytes of the names and values of a sandbox's metadata, and of its environment. */
const MAX_PAIRS_BYTES = 256 * 1024;

/** A v1 create: secure only when asked for. */
export function toCreateSandbox(body: NewSandbox, rules: TimeoutRules): CreateSandbox {
  const secure = body.secure ?? false;
  if (body.network?.allowPublicTraffic === false && !secure) {
    throw new PlatformError('invalid_argument', 'network.allowPublicTraffic: false needs secure: true');
  }
  return { ...toCommon(body, rules.defaultSeconds, rules), secure };
}

/** A v2 create: always secure. */
export function toCreateSandboxV2(body: NewSandboxV2, rules: TimeoutRules): CreateSandbox {
  return { ...toCommon(body, rules.defaultV2Seconds, rules), secure: true };
}

function toCommon(body: NewSandboxV2, defaultSeconds: number, rules: TimeoutRules): Omit<CreateSandbox, 'secure'> {
  const autoPause = body.autoPause ?? rules.autoPause;
  if (body.autoPauseMemory === false && !autoPause) {
    throw new PlatformError('invalid_argument', 'autoPauseMemory: false needs autoPause: true');
  }
  if (body.autoPauseMemory === false && body.autoResume?.enabled === true) {
    throw new PlatformError('invalid_argument', 'autoPauseMemory: false cannot be combined with autoResume');
  }
  return {
    template: body.templateID,
    timeoutSeconds: checkTimeout(body.timeout ?? defaultSeconds, rules),
    onTimeout: autoPause ? 'pause' : 'kill',
    timeoutKeeps: body.autoPauseMemory === false ? 'disk' : 'full',
    autoResume: body.autoResume?.enabled ?? false,
    network: toNetworkPolicy(body),
    metadata: limitPairs('metadata', body.metadata ?? {}),
    envVars: limitPairs('envVars', body.envVars ?? {}),
    customExtensionParams: limitParams(body.customExtensionParams ?? undefined),
  };
}

/** Returns `pairs` unless they are too many bytes: they are kept, listed, and given to every process. */
function limitPairs(field: string, pairs: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  let bytes = 0;
  for (const [name, value] of Object.entries(pairs)) bytes += Buffer.byteLength(name) + Buffer.byteLength(value);
  if (bytes > MAX_PAIRS_BYTES) {
    throw new PlatformError('invalid_argument', `${field} must not have more than ${MAX_PAIRS_BYTES} bytes in all`);
  }
  return pairs;
}

/** Most bytes of the parameters of a sandbox for the custom extension, as JSON. */
const MAX_PARAMS_BYTES = 128 * 1024;

/** Returns `params` unless they are too many bytes. */
export function limitParams(params: ExtensionParams): ExtensionParams;
export function limitParams(params: ExtensionParams | undefined): ExtensionParams | undefined;
export function limitParams(params: ExtensionParams | undefined): ExtensionParams | undefined {
  if (params !== undefined && Buffer.byteLength(JSON.stringify(params)) > MAX_PARAMS_BYTES) {
    throw new PlatformError(
      'invalid_argument',
      `customExtensionParams must not have more than ${MAX_PARAMS_BYTES} bytes as JSON`,
    );
  }
  return params;
}

/** Returns `seconds` unless it is above the maximum; the field is called `timeout` everywhere. */
export function checkTimeout(seconds: number, rules: TimeoutRules): number {
  if (seconds > rules.maximumSeconds) {
    const hours = Math.floor(rules.maximumSeconds / 3600);
    throw new PlatformError(
      'invalid_argument',
      `timeout cannot be greater than ${hours >= 1 ? `${hours} hours` : `${rules.maximumSeconds} seconds`}`,
    );
  }
  return seconds;
}

function toNetworkPolicy(body: NewSandboxV2): NetworkPolicy {
  const { allowOut, denyOut, allowPublicTraffic, maskRequestHost } = body.network ?? {};
  return {
    ...toEgressRules({ allow_internet_access: body.allow_internet_access, allowOut, denyOut }, 'network.'),
    allowPublicTraffic: allowPublicTraffic ?? true,
    maskRequestHost: toMaskRequestHost(maskRequestHost),
  };
}

interface EgressFields {
  readonly allow_internet_access?: boolean | null | undefined;
  readonly allowOut?: readonly string[] | null | undefined;
  readonly denyOut?: readonly string[] | null | undefined;
}

/** What is left out has its default. `at` stands in front of the names of the fields in errors. */
export function toEgressRules({ allow_internet_access, allowOut, denyOut }: EgressFields, at: string): EgressRules {
  const domain = allowOut?.find(isDomain);
  if (domain !== undefined) {
    throw new PlatformError('unsupported_field', `not supported: ${at}allowOut with the domain '${domain}'`);
  }
  return {
    allowInternetAccess: allow_internet_access ?? undefined,
    allowOut: canonicalRules(allowOut ?? [], `${at}allowOut`),
    denyOut: canonicalRules(denyOut ?? [], `${at}denyOut`),
  };
}

function toMaskRequestHost(text: string | null | undefined): string | undefined {
  if (text === null || text === undefined) return undefined;
  if (isMaskRequestHost(text)) return text;
  throw new PlatformError('invalid_argument', 'network.maskRequestHost must be a host with or without a port');
}

/** A name, perhaps with a wildcard in front; what is neither that nor an address is refused as malformed elsewhere. */
function isDomain(rule: string): boolean {
  return parseCidr(rule) === undefined && /^(?:\*\.)?[\w-]+(?:\.[\w-]+)*\.?$/.test(rule) && /[a-z]/i.test(rule);
}

/** The filter of the paged list (contract e2b.md 4, query of route 3). */
export function toListFilter(query: OperationInput<'listSandboxes'>['query']): ListFilter {
  const template = query.template;
  if (template?.includes(':') === true) {
    throw new PlatformError('invalid_argument', 'template must be an id or a name without a tag');
  }
  return {
    states: query.state === undefined ? ['running', 'paused'] : [...new Set(query.state)],
    metadata: parseMetadataFilter(query.metadata),
    startedAfter: query.startedAfter === undefined ? undefined : toStartedAfter(query.startedAfter),
    template,
    order: query.order ?? 'desc',
    limit: query.limit ?? 100,
    nextToken: query.nextToken,
  };
}

/** RFC 3339 has leap seconds and `Date` has none; a time that is not one would filter nothing. */
function toStartedAfter(text: string): number {
  const milliseconds = Date.parse(text);
  if (Number.isNaN(milliseconds)) {
    throw new PlatformError('invalid_argument', 'startedAfter must be a valid date-time');
  }
  return milliseconds;
}

/** The filter of the old list: every running sandbox in one answer. */
export function toRunningFilter(query: OperationInput<'listRunningSandboxes'>['query']): ListFilter {
  return {
    states: ['running'],
    metadata: parseMetadataFilter(query.metadata),
    startedAfter: undefined,
    template: undefined,
    order: 'desc',
    limit: Number.MAX_SAFE_INTEGER,
    nextToken: undefined,
  };
}
