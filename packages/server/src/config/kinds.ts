import { parseCidr } from '@agentenv/core';

/** What a configuration value may be. */
export interface Kind<Value> {
  /** For documentation and error messages, e.g. `integer ≥ 1`. */
  readonly name: string;
  /** The value, or undefined when it is not one of this kind. */
  parse(value: unknown): Value | undefined;
  /** The same from the text of an environment variable. */
  parseText(text: string): Value | undefined;
  /** Paths are resolved and their placeholders expanded after parsing. */
  readonly isPath: boolean;
}

interface Bounds {
  readonly minimum?: number;
  readonly above?: number;
  readonly maximum?: number;
}

function kind<Value>(
  name: string,
  parse: (value: unknown) => Value | undefined,
  parseText: (text: string) => Value | undefined = parse,
  isPath = false,
): Kind<Value> {
  return { name, parse, parseText, isPath };
}

/** Text that is not empty and, where `form` is given, matches it. */
export function text(name = 'text', form = /\S/): Kind<string> {
  return kind(name, (value) => (typeof value === 'string' && form.test(value) ? value : undefined));
}

/** A path of this host; relative ones are relative to the configuration file. */
export function path(): Kind<string> {
  const plain = text('path', /^[^\0]+$/);
  return { ...plain, isPath: true };
}

export function oneOf<const Value extends string>(...values: readonly Value[]): Kind<Value> {
  const find = (value: unknown) => values.find((candidate) => candidate === value);
  return kind(values.map((value) => `\`${value}\``).join(' \\| '), find);
}

export function boolean(): Kind<boolean> {
  return kind(
    'boolean',
    (value) => (typeof value === 'boolean' ? value : undefined),
    (value) => (value === 'true' ? true : value === 'false' ? false : undefined),
  );
}

export function integer(bounds: Bounds = {}): Kind<number> {
  const within = (value: unknown) =>
    typeof value === 'number' && Number.isSafeInteger(value) && inBounds(value, bounds) ? value : undefined;
  return kind(`integer${describe(bounds)}`, within, (value) =>
    /^-?\d+$/.test(value) ? within(Number(value)) : undefined,
  );
}

export function number(bounds: Bounds = {}): Kind<number> {
  const within = (value: unknown) =>
    typeof value === 'number' && Number.isFinite(value) && inBounds(value, bounds) ? value : undefined;
  return kind(`number${describe(bounds)}`, within, (value) =>
    /^[\d.eE+-]+$/.test(value) ? within(Number(value)) : undefined,
  );
}

/** An array; in an environment variable, items joined by commas. */
export function list<Item>(item: Kind<Item>): Kind<readonly Item[]> {
  const parseAll = (values: readonly unknown[]) => {
    const items = values.map((value) => item.parse(value));
    return items.every((parsed) => parsed !== undefined) ? items : undefined;
  };
  return kind(
    `list of ${item.name}`,
    (value) => (Array.isArray(value) ? parseAll(value) : undefined),
    (value) => parseAll(value.split(',').map((part) => part.trim())),
    item.isPath,
  );
}

export function cidr(): Kind<string> {
  return kind('IP address or CIDR', (value) =>
    typeof value === 'string' && parseCidr(value) !== undefined ? value : undefined,
  );
}

/** `host:port` to listen on; an IPv6 address stands in brackets. */
export function listenAddress(): Kind<string> {
  return text('host:port', /^(?:\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}$/);
}

/** Where a service is, `http` or `https`; without spaces around it and slashes behind it. Blank text is kept as empty. */
export function baseUrl(): Kind<string> {
  return kind('http(s) URL', (value) => {
    if (typeof value !== 'string') return undefined;
    const trimmed = value.trim().replace(/\/+$/, '');
    if (trimmed === '') return '';
    const url = URL.parse(trimmed);
    if (url === null || !/^https?:$/.test(url.protocol)) return undefined;
    return url.search === '' && url.hash === '' && url.username === '' && url.password === '' ? trimmed : undefined;
  });
}

/** Where something is sent to, `http` or `https`, without credentials in it. */
export function httpUrl(): Kind<string> {
  return kind('http(s) URL', (value) => {
    const url = typeof value === 'string' ? URL.parse(value) : null;
    if (url === null || !/^https?:$/.test(url.protocol)) return undefined;
    return url.hash === '' && url.username === '' && url.password === '' ? url.href : undefined;
  });
}

/** What signatures are made with; behind `whsec_` stands base64. */
export function signingSecret(): Kind<string> {
  return text('secret of 16 characters or more', /^(?:(?!whsec_)\S{16,}|whsec_[A-Za-z0-9+/]{22,}={0,2})$/);
}

/** A DNS name, perhaps with a port that clients need. */
export function domain(): Kind<string> {
  return text('domain', /^[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d{1,5})?$/);
}

function inBounds(value: number, { minimum, above, maximum }: Bounds): boolean {
  return (
    (minimum === undefined || value >= minimum) &&
    (above === undefined || value > above) &&
    (maximum === undefined || value <= maximum)
  );
}

function describe({ minimum, above, maximum }: Bounds): string {
  const lower = minimum !== undefined ? ` ≥ ${minimum}` : above !== undefined ? ` > ${above}` : '';
  return `${lower}${maximum === undefined ? '' : `${lower === '' ? '' : ','} ≤ ${maximum}`}`;
}
