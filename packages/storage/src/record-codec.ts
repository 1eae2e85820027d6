import {
  type BuildId,
  type CaptureId,
  type CaptureKind,
  type InstanceId,
  type NetworkPolicy,
  type Resources,
  SANDBOX_STATES,
  type SandboxId,
  type SandboxRecord,
  type SnapshotContext,
  type SnapshotOrigin,
  type SnapshotRecord,
  type TemplateId,
} from '@agentenv/core';
import type { TemplateRecord } from './ledger.ts';

/** Why a stored record cannot be used; one sentence naming the field. */
export class UnreadableRecord extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'UnreadableRecord';
  }
}

type Json = Readonly<Record<string, unknown>>;

function object(value: unknown, name: string): Json {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new UnreadableRecord(`${name} is not an object`);
  }
  return value as Json;
}

function text(from: Json, key: string): string {
  const value = from[key];
  if (typeof value !== 'string') throw new UnreadableRecord(`${key} is not text`);
  return value;
}

function finite(from: Json, key: string): number {
  const value = from[key];
  if (typeof value !== 'number' || !Number.isFinite(value)) throw new UnreadableRecord(`${key} is not a number`);
  return value;
}

function flag(from: Json, key: string): boolean {
  const value = from[key];
  if (typeof value !== 'boolean') throw new UnreadableRecord(`${key} is not true or false`);
  return value;
}

function oneOf<T extends string>(from: Json, key: string, allowed: readonly T[]): T {
  const value = from[key];
  const found = allowed.find((item) => item === value);
  if (found === undefined) throw new UnreadableRecord(`${key} is none of ${allowed.join(', ')}`);
  return found;
}

/** Absent and null read as undefined. */
function optional<T>(from: Json, key: string, read: (from: Json, key: string) => T): T | undefined {
  return from[key] === undefined || from[key] === null ? undefined : read(from, key);
}

function textMap(from: Json, key: string): Readonly<Record<string, string>> {
  const entries = Object.entries(object(from[key], key));
  return Object.fromEntries(
    entries.map(([name, value]) => {
      if (typeof value !== 'string') throw new UnreadableRecord(`${key}.${name} is not text`);
      return [name, value];
    }),
  );
}

function textList(from: Json, key: string): readonly string[] {
  const value = from[key];
  if (!Array.isArray(value) || !value.every((item) => typeof item === 'string')) {
    throw new UnreadableRecord(`${key} is not a list of text`);
  }
  return value;
}

function resources(from: Json, key: string): Resources {
  const value = object(from[key], key);
  return {
    vcpus: finite(value, 'vcpus'),
    memoryMB: finite(value, 'memoryMB'),
    diskSizeMB: finite(value, 'diskSizeMB'),
  };
}

function networkPolicy(from: Json, key: string): NetworkPolicy {
  const value = object(from[key], key);
  return {
    allowInternetAccess: optional(value, 'allowInternetAccess', flag),
    allowOut: textList(value, 'allowOut'),
    denyOut: textList(value, 'denyOut'),
    allowPublicTraffic: flag(value, 'allowPublicTraffic'),
    maskRequestHost: optional(value, 'maskRequestHost', text),
  };
}

function buildId(from: Json, key: string): BuildId {
  return text(from, key) as BuildId;
}

function origin(from: Json, key: string): SnapshotOrigin {
  const value = object(from[key], key);
  return { templateId: text(value, 'templateId') as TemplateId, buildId: optional(value, 'buildId', buildId) };
}

function context(from: Json, key: string): SnapshotContext {
  const value = object(from[key], key);
  return {
    envVars: textMap(value, 'envVars'),
    defaultUser: text(value, 'defaultUser'),
    defaultWorkdir: optional(value, 'defaultWorkdir', text),
    customExtensionParams: extensionParams(value),
  };
}

/** Records of before there were any have none. */
function extensionParams(from: Json): Json {
  const key = 'customExtensionParams';
  return optional(from, key, (value) => object(value[key], key)) ?? {};
}

function parse(json: string): Json {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw new UnreadableRecord(`not JSON: ${error instanceof Error ? error.message : 'unknown'}`);
  }
  return object(value, 'the record');
}

/** Records of before a pause could leave the memory out have none. */
function captureKind(from: Json, key: string): CaptureKind {
  return optional(from, key, (value) => oneOf(value, key, ['full', 'disk'])) ?? 'full';
}

/** Reads a stored sandbox; unknown keys are left out. Throws `UnreadableRecord`. */
export function decodeSandboxRecord(json: string): SandboxRecord {
  const from = parse(json);
  return {
    id: text(from, 'id') as SandboxId,
    templateId: text(from, 'templateId') as TemplateId,
    buildId: optional(from, 'buildId', buildId),
    alias: optional(from, 'alias', text),
    state: oneOf(from, 'state', SANDBOX_STATES),
    instanceId: text(from, 'instanceId') as InstanceId,
    createdAt: finite(from, 'createdAt'),
    startedAt: finite(from, 'startedAt'),
    deadline: optional(from, 'deadline', finite),
    timeoutSeconds: finite(from, 'timeoutSeconds'),
    onTimeout: oneOf(from, 'onTimeout', ['kill', 'pause']),
    timeoutKeeps: captureKind(from, 'timeoutKeeps'),
    autoResume: flag(from, 'autoResume'),
    secure: flag(from, 'secure'),
    resources: resources(from, 'resources'),
    network: networkPolicy(from, 'network'),
    metadata: textMap(from, 'metadata'),
    customExtensionParams: extensionParams(from),
    envVars: textMap(from, 'envVars'),
    defaultUser: text(from, 'defaultUser'),
    defaultWorkdir: optional(from, 'defaultWorkdir', text),
    envdVersion: text(from, 'envdVersion'),
    backend: text(from, 'backend'),
    channelKey: text(from, 'channelKey'),
    capture: optional(from, 'capture', (value, key) => text(value, key) as CaptureId),
    captureKind: captureKind(from, 'captureKind'),
    runtime: optional(from, 'runtime', (value, key) => object(value[key], key)),
    engineGone: optional(from, 'engineGone', flag),
  };
}

/** Reads a stored template; unknown keys are left out. Throws `UnreadableRecord`. */
export function decodeTemplateRecord(json: string): TemplateRecord {
  const from = parse(json);
  return {
    id: text(from, 'id'),
    buildId: buildId(from, 'buildId'),
    names: textList(from, 'names'),
    vcpus: finite(from, 'vcpus'),
    memoryMB: finite(from, 'memoryMB'),
    diskSizeMB: finite(from, 'diskSizeMB'),
    envdVersion: text(from, 'envdVersion'),
    createdAt: finite(from, 'createdAt'),
    updatedAt: finite(from, 'updatedAt'),
    spawnCount: finite(from, 'spawnCount'),
    lastSpawnedAt: optional(from, 'lastSpawnedAt', finite),
    sourceDigest: optional(from, 'sourceDigest', text),
  };
}

/** Reads a stored snapshot; unknown keys are left out. Throws `UnreadableRecord`. */
export function decodeSnapshotRecord(json: string): SnapshotRecord {
  const from = parse(json);
  return {
    buildId: buildId(from, 'buildId'),
    templateId: text(from, 'templateId') as TemplateId,
    name: optional(from, 'name', text),
    tags: textList(from, 'tags'),
    createdAt: finite(from, 'createdAt'),
    sandboxId: text(from, 'sandboxId') as SandboxId,
    origin: origin(from, 'origin'),
    backend: text(from, 'backend'),
    manifestDigest: text(from, 'manifestDigest'),
    resources: resources(from, 'resources'),
    envdVersion: text(from, 'envdVersion'),
    context: context(from, 'context'),
    spawnCount: finite(from, 'spawnCount'),
    lastSpawnedAt: optional(from, 'lastSpawnedAt', finite),
  };
}

/** JSON of a record as it is stored; keys whose value is undefined are left out. */
export function encodeRecord(record: SandboxRecord | TemplateRecord | SnapshotRecord): string {
  return JSON.stringify(record);
}
