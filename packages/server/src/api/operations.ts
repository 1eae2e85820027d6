import type { Readable } from 'node:stream';
import type { Log } from '@agentenv/core';
import type { operations } from '@agentenv/protocol/control-plane';
import type { OperationId } from './document.ts';

type Part<Source, Key extends PropertyKey> = Source extends { readonly [K in Key]?: infer Value } ? Value : undefined;
type JsonOf<Source> = Source extends { readonly content: { readonly 'application/json': infer Body } }
  ? Body
  : undefined;
type TextOf<Source> = Source extends { readonly content: { readonly 'text/plain': infer Body } } ? Body : undefined;
type StreamOf<Source> = Source extends { readonly content: { readonly 'text/event-stream': string } }
  ? Readable
  : undefined;
type Present<Value> = Exclude<Value, undefined>;

/** What a handler gets: validated, defaults of the document applied, an absent optional body replaced by `{}`. */
export interface OperationInput<Id extends OperationId> {
  readonly body: JsonOf<Present<Part<operations[Id], 'requestBody'>>>;
  readonly path: Part<Part<operations[Id], 'parameters'>, 'path'>;
  readonly query: Present<Part<Part<operations[Id], 'parameters'>, 'query'>>;
  /** Parameters among the headers, by their names in the document. */
  readonly header: Present<Part<Part<operations[Id], 'parameters'>, 'header'>>;
  readonly log: Log;
  /** Aborted when nothing can be sent any more: the answer is complete, or the client has gone. */
  readonly closed: AbortSignal;
}

type Responses<Id extends OperationId> = operations[Id]['responses'];

/** What a handler answers: one of the successful statuses of the document with the body it has there. */
export type OperationOutput<Id extends OperationId> = {
  readonly [Status in keyof Responses<Id> & number]: {
    readonly status: Status;
    readonly body?: JsonOf<Responses<Id>[Status]> | TextOf<Responses<Id>[Status]> | StreamOf<Responses<Id>[Status]>;
    readonly headers?: Readonly<Record<string, string>>;
  };
}[keyof Responses<Id> & number];

export type Handler<Id extends OperationId> = (
  input: OperationInput<Id>,
) => OperationOutput<Id> | Promise<OperationOutput<Id>>;

/** Operations that answer something else than errors, i.e. are built. */
export type BuiltOperationId = {
  readonly [Id in OperationId]: keyof Responses<Id> & number extends never ? never : Id;
}[OperationId];

/** One handler for every built operation; a missing one does not compile. */
export type Handlers = { readonly [Id in BuiltOperationId]: Handler<Id> };
