import { describe, expect, it } from 'vitest';
import { signAttempt } from './webhook-signature.ts';

const BODY = '{"test": 2432232314}';
const ATTEMPT = {
  webhookId: 'wh_0123456789',
  eventId: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
  deliveryId: '019b76da-a800-7000-8000-00000000000d',
  at: 1_614_265_330_999,
  body: BODY,
};

describe('the signature of an attempt', () => {
  it('is that of the example of the Standard Webhooks', () => {
    expect(signAttempt('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', ATTEMPT)).toMatchObject({
      'webhook-id': ATTEMPT.eventId,
      'webhook-timestamp': '1614265330',
      'webhook-signature': 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
    });
  });

  it('is also E2B’s: SHA-256 of secret and body, base64 without padding', async () => {
    const secret = 'a-secret-with-ümläuts';
    const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(`${secret}${BODY}`));
    const expected = new Uint8Array(digest).toBase64({ omitPadding: true });
    expect(signAttempt(secret, ATTEMPT)).toMatchObject({
      'e2b-webhook-id': ATTEMPT.webhookId,
      'e2b-delivery-id': ATTEMPT.deliveryId,
      'e2b-signature-version': 'v1',
      'e2b-signature': expected,
    });
    expect(expected).not.toContain('=');
  });

  it('takes a secret that is any text as it is', async () => {
    const secret = 'any text of its own';
    const algorithm = { name: 'HMAC', hash: 'SHA-256' };
    const key = await crypto.subtle.importKey('raw', new TextEncoder().encode(secret), algorithm, false, ['sign']);
    const signed = new TextEncoder().encode(`${ATTEMPT.eventId}.1614265330.${BODY}`);
    const mac = new Uint8Array(await crypto.subtle.sign('HMAC', key, signed));
    expect(signAttempt(secret, ATTEMPT)['webhook-signature']).toBe(`v1,${mac.toBase64()}`);
  });

  it('depends on the secret, the body and, as a standard webhook, on id and time', () => {
    const both = (secret: string, changes: Partial<typeof ATTEMPT>) => {
      const headers = signAttempt(secret, { ...ATTEMPT, ...changes });
      return [headers['webhook-signature'], headers['e2b-signature']];
    };
    const [keyed, plain] = both('secret-of-a-webhook', {});
    const [otherKeyed, otherPlain] = both('secret-of-another-one', {});
    expect([otherKeyed === keyed, otherPlain === plain]).toEqual([false, false]);
    const [bodyKeyed, bodyPlain] = both('secret-of-a-webhook', { body: `${BODY} ` });
    expect([bodyKeyed === keyed, bodyPlain === plain]).toEqual([false, false]);
    expect(both('secret-of-a-webhook', { eventId: 'other' })[0]).not.toBe(keyed);
    expect(both('secret-of-a-webhook', { at: ATTEMPT.at + 1_000 })[0]).not.toBe(keyed);
  });
});
