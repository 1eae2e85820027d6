import { dirname, resolve } from 'node:path';
import { PlatformError } from '@agentenv/core';
import { parse, TomlError } from 'smol-toml';
import { CONFIG_SCHEMA, type Config, type ConfigKey, type ConfigName } from './schema.ts';

export interface ConfigSources {
  /** Path and text of the TOML file, if there is one. */
  readonly file: { readonly path: string; readonly text: string } | undefined;
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** Relative paths that do not come from a file are relative to this. */
  readonly workingDirectory: string;
  /** What `$AENV_INSTALL` stands for: the directory the program is installed in. */
  readonly installDirectory: string;
}

const NAMES = Object.keys(CONFIG_SCHEMA) as readonly ConfigName[];
const SCHEMA: Readonly<Record<ConfigName, ConfigKey<unknown>>> = CONFIG_SCHEMA;

/**
 * The configuration: defaults, then the file, then the environment. Throws `invalid_argument` naming the key of an
 * unknown one, a value of the wrong kind, or values that do not go together.
 */
export function loadConfig(sources: ConfigSources): Config {
  const fromFile = sources.file === undefined ? new Map<ConfigName, unknown>() : readFile(sources.file);
  const values: Partial<Record<ConfigName, unknown>> = {};
  const base = sources.file === undefined ? sources.workingDirectory : dirname(resolve(sources.file.path));
  for (const name of NAMES) {
    const value = readValue(name, fromFile, sources.environment);
    const place = (path: unknown): unknown =>
      typeof path === 'string' ? resolve(base, expand(path, values, sources.installDirectory)) : path;
    values[name] = SCHEMA[name].kind.isPath ? (Array.isArray(value) ? value.map(place) : place(value)) : value;
  }
  const config = values as Config;
  checkTogether(config);
  return config;
}

function readValue(
  name: ConfigName,
  fromFile: ReadonlyMap<ConfigName, unknown>,
  environment: ConfigSources['environment'],
): unknown {
  const { kind, env, default: standard } = SCHEMA[name];
  const text = env === undefined ? undefined : environment[env];
  if (env !== undefined && text !== undefined && text.trim() !== '') {
    const value = kind.parseText(text.trim());
    if (value === undefined) throw problem(`${name} (from ${env})`, `must be ${plain(kind.name)}`);
    return value;
  }
  if (!fromFile.has(name)) return standard;
  const value = kind.parse(fromFile.get(name));
  if (value === undefined) throw problem(name, `must be ${plain(kind.name)}`);
  return value;
}

/** Leaves of the TOML document by dotted name; a table that is no prefix of any key is unknown as a whole. */
function readFile(file: { readonly path: string; readonly text: string }): ReadonlyMap<ConfigName, unknown> {
  let document: Record<string, unknown>;
  try {
    document = parse(file.text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const [first] = error.message.split('\n');
    throw new PlatformError('invalid_argument', `${file.path}:${error.line}:${error.column}: ${first ?? ''}`, {
      cause: error,
    });
  }
  const leaves = new Map<ConfigName, unknown>();
  const collect = (prefix: string, table: Record<string, unknown>): void => {
    for (const [part, value] of Object.entries(table)) {
      const name = `${prefix}${part}`;
      const known = NAMES.find((candidate) => candidate === name);
      if (known !== undefined) {
        leaves.set(known, value);
      } else if (isTable(value) && NAMES.some((candidate) => candidate.startsWith(`${name}.`))) {
        collect(`${name}.`, value);
      } else {
        throw new PlatformError('invalid_argument', `unknown configuration key ${name}${hint(name)}`);
      }
    }
  };
  collect('', document);
  return leaves;
}

function expand(value: string, values: Partial<Record<ConfigName, unknown>>, installDirectory: string): string {
  // home_path and runtime_path come first in the table, so they are known when a later path refers to them.
  const places: Readonly<Record<string, unknown>> = {
    $AENV_HOME: values.home_path,
    $AENV_RUNTIME: values.runtime_path,
    $AENV_INSTALL: installDirectory,
  };
  return value.replace(/^\$AENV_(?:HOME|RUNTIME|INSTALL)(?=\/|$)/, (place) => String(places[place] ?? place));
}

function checkTogether(config: Config): void {
  const ordered = (low: ConfigName, high: ConfigName): void => {
    if (Number(config[low]) > Number(config[high])) throw problem(low, `must not be greater than ${high}`);
  };
  ordered('pool.low_watermark', 'pool.high_watermark');
  ordered('pool.engines.low_watermark', 'pool.engines.high_watermark');
  ordered('pool.network.low_watermark', 'pool.network.high_watermark');
  ordered('observability.sandbox_metrics_interval_secs', 'observability.sandbox_metrics_idle_interval_secs');
  ordered('orchestrator.default_sandbox_timeout_secs', 'orchestrator.max_sandbox_timeout_secs');
  ordered('orchestrator.default_sandbox_timeout_v2_secs', 'orchestrator.max_sandbox_timeout_secs');
  checkWebhooks(config);
  checkPort('api_addr', config.api_addr);
  const certificates = config['tls.certificates'].length;
  if (config['tls.private_keys'].length !== certificates) {
    throw problem('tls.private_keys', 'must have as many files as tls.certificates');
  }
  if (config['tls.addr'] === undefined) {
    if (certificates > 0) throw problem('tls.addr', 'must be set when there are tls.certificates');
    return;
  }
  checkPort('tls.addr', config['tls.addr']);
  if (certificates === 0) throw problem('tls.certificates', 'must not be empty when tls.addr is set');
}

function checkWebhooks(config: Config): void {
  const urls = config['webhooks.urls'];
  if (new Set(urls).size < urls.length) throw problem('webhooks.urls', 'must not have a URL twice');
  if (config['webhooks.secrets'].length !== urls.length) {
    throw problem('webhooks.secrets', 'must have as many secrets as webhooks.urls');
  }
  if (urls.length > 0 && config['webhooks.events'].length === 0) throw problem('webhooks.events', 'must not be empty');
}

function checkPort(name: ConfigName, address: string): void {
  if (splitAddress(address).port > 65_535) throw problem(name, 'has a port above 65535');
}

/** Host (without brackets) and port of a listen address. */
export function splitAddress(address: string): { readonly host: string; readonly port: number } {
  const colon = address.lastIndexOf(':');
  return { host: address.slice(0, colon).replace(/^\[|\]$/g, ''), port: Number(address.slice(colon + 1)) };
}

function problem(name: string, why: string): PlatformError {
  return new PlatformError('invalid_argument', `configuration key ${name} ${why}`);
}

/** Kind names are Markdown for the documentation; messages are plain. */
function plain(kindName: string): string {
  return kindName.replaceAll('`', '').replaceAll('\\|', 'or');
}

/** The key that was probably meant: the same last part somewhere else, or a difference of two letters. */
function hint(name: string): string {
  const last = name.split('.').at(-1);
  const near = NAMES.find((candidate) => candidate.split('.').at(-1) === last || distance(candidate, name) <= 2);
  return near === undefined ? '' : ` (did you mean ${near}?)`;
}

function distance(left: string, right: string): number {
  let previous = Array.from({ length: right.length + 1 }, (_, index) => index);
  for (const [row, letter] of [...left].entries()) {
    const current = [row + 1];
    for (const [column, other] of [...right].entries()) {
      const replaced = (previous[column] ?? 0) + (letter === other ? 0 : 1);
      current.push(Math.min(replaced, (previous[column + 1] ?? 0) + 1, (current[column] ?? 0) + 1));
    }
    previous = current;
  }
  return previous.at(-1) ?? 0;
}

function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date);
}
