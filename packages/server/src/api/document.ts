import { readFileSync } from 'node:fs';
import { CONTROL_PLANE_DOCUMENT, type operations } from '@agentenv/protocol/control-plane';
import { parse } from 'yaml';
import type { SecurityScheme } from './authentication.ts';

/** A JSON Schema object of the document, its references resolved. */
export type Schema = Readonly<Record<string, unknown>>;

export type OperationId = keyof operations;

export interface Parameter {
  readonly name: string;
  readonly schema: Schema;
  readonly required: boolean;
}

/** One operation of the OpenAPI document, ready to become a route. */
export interface Operation {
  readonly id: OperationId;
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  /** Path template with `{name}` placeholders; also the route label of metrics. */
  readonly path: string;
  /** The ways in which the API key may be given; none: it is not needed. */
  readonly security: readonly SecurityScheme[];
  /** Whether it is implemented; otherwise it answers 501. */
  readonly built: boolean;
  readonly body: { readonly schema: Schema; readonly required: boolean } | undefined;
  readonly pathParameters: readonly Parameter[];
  readonly queryParameters: readonly Parameter[];
  readonly headerParameters: readonly Parameter[];
  /** Its answer is a stream that does not end by itself. */
  readonly endless: boolean;
  /** JSON schema of the answer by status or `default`; statuses without a JSON body are absent. */
  readonly responses: ReadonlyMap<string, Schema>;
}

const EVENT_STREAM = 'text/event-stream';
const METHODS = ['get', 'post', 'put', 'patch', 'delete'] as const;

/** Reads the control-plane document that ships with the protocol package. */
export function loadControlPlane(): readonly Operation[] {
  return readOperations(parse(readFileSync(CONTROL_PLANE_DOCUMENT, 'utf8')));
}

/** The operations of a parsed OpenAPI 3.1 document, in its order. References are resolved; they must not be recursive. */
export function readOperations(document: unknown): readonly Operation[] {
  const root = object(document, 'the document');
  const operations: Operation[] = [];
  for (const [path, item] of Object.entries(object(root.paths, 'paths'))) {
    const pathItem = object(item, path);
    const shared = list(pathItem.parameters);
    for (const method of METHODS) {
      const raw = pathItem[method];
      if (raw === undefined) continue;
      const operation = object(resolve(root, raw), `${method} ${path}`);
      const parameters = [...list(resolve(root, shared)), ...list(operation.parameters)].map((parameter) =>
        object(parameter, `a parameter of ${method} ${path}`),
      );
      operations.push({
        id: String(operation.operationId) as OperationId,
        method: method.toUpperCase() as Operation['method'],
        path,
        security: readSecurity(operation.security ?? root.security),
        built: operation['x-not-built'] !== true,
        body: readBody(operation.requestBody),
        pathParameters: parameters.filter((parameter) => parameter.in === 'path').map(readParameter),
        queryParameters: parameters.filter((parameter) => parameter.in === 'query').map(readParameter),
        headerParameters: parameters.filter((parameter) => parameter.in === 'header').map(readParameter),
        endless: isEndless(operation.responses),
        responses: readResponses(operation.responses),
      });
    }
  }
  return operations;
}

function readSecurity(raw: unknown): readonly SecurityScheme[] {
  return list(raw).flatMap((requirement) => Object.keys(object(requirement, 'security')) as SecurityScheme[]);
}

function readBody(raw: unknown): Operation['body'] {
  if (raw === undefined) return undefined;
  const body = object(raw, 'requestBody');
  const schema = jsonSchemaOf(body);
  return schema === undefined ? undefined : { schema, required: body.required === true };
}

function readParameter(parameter: Schema): Parameter {
  return {
    name: String(parameter.name),
    schema: object(parameter.schema, 'schema'),
    required: parameter.required === true,
  };
}

function readResponses(raw: unknown): ReadonlyMap<string, Schema> {
  const schemas = new Map<string, Schema>();
  for (const [status, response] of Object.entries(object(raw, 'responses'))) {
    const schema = jsonSchemaOf(object(response, status));
    if (schema !== undefined) schemas.set(status, schema);
  }
  return schemas;
}

function isEndless(raw: unknown): boolean {
  return Object.entries(object(raw, 'responses')).some(([status, response]) => {
    const { content } = object(response, status);
    return content !== undefined && EVENT_STREAM in object(content, 'content');
  });
}

function jsonSchemaOf(holder: Schema): Schema | undefined {
  if (holder.content === undefined) return undefined;
  const json = object(holder.content, 'content')['application/json'];
  return json === undefined ? undefined : object(object(json, 'application/json').schema, 'schema');
}

/** A copy of `node` with every `$ref` replaced by what it names; keys beside a reference win over it. */
function resolve(root: Schema, node: unknown): unknown {
  if (Array.isArray(node)) return node.map((item) => resolve(root, item));
  if (typeof node !== 'object' || node === null) return node;
  const { $ref, ...rest } = node as Record<string, unknown>;
  const own = Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, resolve(root, value)]));
  if (typeof $ref !== 'string') return own;
  const target = $ref
    .replace(/^#\//, '')
    .split('/')
    .reduce<unknown>((at, key) => object(at, $ref)[key], root);
  if (target === undefined) throw new Error(`the document refers to ${$ref}, which it does not have`);
  return { ...object(resolve(root, target), $ref), ...own };
}

function object(value: unknown, what: string): Schema {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error(`${what} is not an object`);
  return value as Schema;
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}
