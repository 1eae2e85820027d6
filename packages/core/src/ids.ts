import { V7Generator } from 'uuidv7';
import type { Clock } from './clock.ts';
import type { Rng } from './rng.ts';

declare const brand: unique symbol;
type Branded<Name extends string> = string & { readonly [brand]: Name };

/** `i` + 20 of `[a-z0-9]`: safe as a DNS label, no dash (contract/README, "sandbox id"). */
export type SandboxId = Branded<'SandboxId'>;
/** Same form as a sandbox id, or a well-known name such as `base`. */
export type TemplateId = Branded<'TemplateId'>;
/** UUIDv7 of one template build. */
export type BuildId = Branded<'BuildId'>;
/** UUIDv7 of one generation: one runtime instance of a sandbox (`sandboxInstanceId`). */
export type InstanceId = Branded<'InstanceId'>;
/** UUIDv7 of one stored capture of a sandbox; also the name of its directory. */
export type CaptureId = Branded<'CaptureId'>;
/** UUIDv7 of one thing that happened to a sandbox; of two events of one server the later has the greater. */
export type EventId = Branded<'EventId'>;
/** UUIDv7 of one attempt to send an event. */
export type DeliveryId = Branded<'DeliveryId'>;

const ALPHABET = 'abcdefghijklmnopqrstuvwxyz0123456789';
const RANDOM_LENGTH = 20;
/** Largest multiple of 36 that fits a byte: bytes from here on are thrown away so that every character is equally likely. */
const UNIFORM_LIMIT = 252;
const ID_PATTERN = /^i[a-z0-9]{20}$/;
const UUID_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

function createPlatformId(rng: Rng): string {
  let id = 'i';
  while (id.length <= RANDOM_LENGTH) {
    for (const byte of rng.bytes(RANDOM_LENGTH + 4)) {
      if (byte < UNIFORM_LIMIT && id.length <= RANDOM_LENGTH) id += ALPHABET.charAt(byte % ALPHABET.length);
    }
  }
  return id;
}

/** A new sandbox id: about 103 bits of randomness, every character uniform. */
export function createSandboxId(rng: Rng): SandboxId {
  return createPlatformId(rng) as SandboxId;
}

/** A new template id, of the same form as a sandbox id. */
export function createTemplateId(rng: Rng): TemplateId {
  return createPlatformId(rng) as TemplateId;
}

/** True for text of the form our sandbox and template ids have. */
export function isPlatformId(text: string): boolean {
  return ID_PATTERN.test(text);
}

/** True for anything written like a UUID, of any version and case. */
export function isUuid(text: string): boolean {
  return UUID_PATTERN.test(text);
}

/** Makes time-ordered ids; within one source each is greater than the one before, also when the wall clock steps back. */
export interface UuidSource {
  instanceId(): InstanceId;
  buildId(): BuildId;
  captureId(): CaptureId;
  eventId(): EventId;
  deliveryId(): DeliveryId;
}

/** How far the wall clock may step back before a source starts a new sequence instead of going on, milliseconds. */
const ROLLBACK_ALLOWANCE_MS = 10_000;

export function createUuidSource(deps: { readonly clock: Clock; readonly rng: Rng }): UuidSource {
  const generator = new V7Generator({
    nextUint32() {
      const bytes = deps.rng.bytes(4);
      return new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
    },
  });
  const next = (): string => generator.generateOrResetCore(deps.clock.now(), ROLLBACK_ALLOWANCE_MS).toString();
  return {
    instanceId: () => next() as InstanceId,
    buildId: () => next() as BuildId,
    captureId: () => next() as CaptureId,
    eventId: () => next() as EventId,
    deliveryId: () => next() as DeliveryId,
  };
}

/** When the source made this id, milliseconds since the epoch; undefined for what is no UUIDv7. */
export function uuidTime(id: string): number | undefined {
  return isUuid(id) && id.charAt(14) === '7' ? Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16) : undefined;
}
