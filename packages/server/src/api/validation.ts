import { PlatformError, shorten } from '@agentenv/core';
import { Ajv2020, type ErrorObject } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import type { Schema } from './document.ts';

/** Longest message of a validation error, characters; it may name keys the client chose. */
const MAX_MESSAGE = 300;

export type RequestPart = 'body' | 'path' | 'query' | 'header';

/** Throws a PlatformError that names the first thing that is wrong with `value`. */
export type Validate = (value: unknown) => void;

export interface Validator {
  /** Compiles once, at boot. Text in paths and queries is converted to the type the schema asks for, in place. */
  compile(schema: Schema, part: RequestPart): Validate;
}

/** Validation of requests by the schemas of the OpenAPI document, with its vendor extensions as keywords. */
export function createValidator(): Validator {
  const strict = createAjv(false);
  const coercing = createAjv(true);
  return {
    compile(schema, part) {
      const check = (part === 'body' ? strict : coercing).compile(schema);
      return (value) => {
        if (check(value)) return;
        const [error] = check.errors ?? [];
        throw error === undefined
          ? new PlatformError('invalid_argument', `the ${part} is invalid`)
          : refuse(error, part);
      };
    },
  };
}

function createAjv(coerceTypes: boolean): Ajv2020 {
  const ajv = new Ajv2020({ coerceTypes, useDefaults: true, allowUnionTypes: true, strict: true });
  formats.default(ajv, ['date-time', 'uuid']);
  ajv.addKeyword({
    keyword: 'x-unsupported',
    schemaType: 'boolean',
    validate: (unsupported: boolean, value: unknown) => !unsupported || isEmpty(value),
  });
  ajv.addKeyword({
    keyword: 'x-supported-values',
    schemaType: 'array',
    validate: (supported: readonly unknown[], value: unknown) => supported.includes(value),
  });
  return ajv;
}

/** null, empty text, an empty collection, or an object with nothing but such values. */
function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === '') return true;
  if (Array.isArray(value)) return value.length === 0;
  return typeof value === 'object' && Object.values(value).every((inner) => isEmptyLeaf(inner));
}

/** One level below the field is enough for what clients send, and bounds the work on hostile input. */
function isEmptyLeaf(value: unknown): boolean {
  if (value === null || value === '') return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}

function refuse(error: ErrorObject, part: RequestPart): PlatformError {
  const at = error.instancePath.split('/').slice(1).map(unescapePointer).join('.');
  if (error.keyword === 'x-unsupported' || error.keyword === 'x-supported-values') {
    return new PlatformError('unsupported_field', shorten(`not supported: ${at}`, MAX_MESSAGE), {
      details: { field: at },
    });
  }
  return new PlatformError('invalid_argument', shorten(describe(error, at, part), MAX_MESSAGE));
}

function describe(error: ErrorObject, at: string, part: RequestPart): string {
  const subject = at === '' ? `the ${part}` : at;
  if (error.propertyName !== undefined) return `${subject} has the invalid name ${JSON.stringify(error.propertyName)}`;
  switch (error.keyword) {
    case 'required':
      return `${at === '' ? '' : `${at}.`}${String(error.params.missingProperty)} is required`;
    case 'type':
      return `${subject} must be of type ${[error.params.type].flat().join(' or ')}`;
    case 'enum':
      return `${subject} must be one of ${[error.params.allowedValues].flat().join(', ')}`;
    case 'exclusiveMinimum':
      return `${subject} must be greater than ${String(error.params.limit)}`;
    case 'minimum':
      return `${subject} must be at least ${String(error.params.limit)}`;
    case 'maximum':
      return `${subject} must be at most ${String(error.params.limit)}`;
    case 'pattern':
      return `${subject} has characters that are not allowed`;
    case 'format':
      return `${subject} must be a valid ${String(error.params.format)}`;
    default:
      return `${subject} ${error.message ?? 'is invalid'}`;
  }
}

function unescapePointer(segment: string): string {
  return segment.replaceAll('~1', '/').replaceAll('~0', '~');
}
