import { createHash, createHmac } from 'node:crypto';

/** One attempt to send an event, as it is signed. */
export interface SignedAttempt {
  readonly webhookId: string;
  readonly eventId: string;
  readonly deliveryId: string;
  /** Milliseconds since the epoch. */
  readonly at: number;
  /** Byte for byte what is sent. */
  readonly body: string;
}

/** In front of secrets that are base64, as the Standard Webhooks have them. */
const ENCODED = 'whsec_';

function key(secret: string): Buffer {
  return secret.startsWith(ENCODED) ? Buffer.from(secret.slice(ENCODED.length), 'base64') : Buffer.from(secret);
}

/**
 * The headers by which a receiver knows who sent an event, in two forms: E2B's, unpadded base64 of SHA-256 of the secret and
 * the body (contract hooks.md 2.5), and that of the Standard Webhooks, an HMAC that also covers id and time.
 */
export function signAttempt(secret: string, attempt: SignedAttempt): Readonly<Record<string, string>> {
  const { webhookId, eventId, deliveryId, body } = attempt;
  const seconds = String(Math.floor(attempt.at / 1000));
  const plain = createHash('sha256').update(secret).update(body).digest('base64').replace(/=+$/, '');
  const keyed = createHmac('sha256', key(secret)).update(`${eventId}.${seconds}.${body}`).digest('base64');
  return {
    'webhook-id': eventId,
    'webhook-timestamp': seconds,
    'webhook-signature': `v1,${keyed}`,
    'e2b-webhook-id': webhookId,
    'e2b-delivery-id': deliveryId,
    'e2b-signature-version': 'v1',
    'e2b-signature': plain,
  };
}
