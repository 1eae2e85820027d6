import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { createUuidSource, LIFECYCLE_EVENT_TYPES, type LifecycleChange, type SandboxId } from '@agentenv/core';
import { createRealClock, createRecordingLog, sandboxRecord } from '@agentenv/core/testing';
import { Sandbox } from 'e2b';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, describe, expect, it, test } from 'vitest';
import { createTestEvents } from '../testing/events.ts';
import { startServerProcess } from '../testing/server-process.ts';
import {
  ACCEPT,
  type Delivery,
  type ReceiverBehaviour,
  startWebhookReceiver,
  type WebhookReceiver,
} from '../testing/webhook-receiver.ts';
import { createEventMetrics } from './event-metrics.ts';
import { openWebhooks, type WebhookDependencies, webhookId } from './webhooks.ts';

const SECRET = 'planted-secret-of-a-webhook';
const ONE = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const TWO = 'ibbbbbbbbbbbbbbbbbbbb' as SandboxId;
const CREATED = { type: 'sandbox.lifecycle.created' } as const;

let directory: string;
let receiver: WebhookReceiver;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-webhooks-'));
  receiver = await startWebhookReceiver();
});
afterEach(async () => {
  await receiver[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

async function start(changes: Partial<WebhookDependencies> = {}) {
  const clock = createRealClock();
  const log = createRecordingLog();
  const { events } = createTestEvents({ clock, log });
  const registry = new Registry();
  const rng = { bytes: (length: number) => randomBytes(length) };
  const webhooks = await openWebhooks({
    targets: [{ url: receiver.url, secret: SECRET }],
    types: LIFECYCLE_EVENT_TYPES,
    ...{ timeoutMs: 1_000, attempts: 3, directory: join(directory, 'webhooks'), bus: events },
    ...{ clock, rng, ids: createUuidSource({ clock, rng }), log, metrics: createEventMetrics(registry).webhooks },
    ...changes,
  });
  const publish = (id: SandboxId = ONE, change: LifecycleChange = CREATED): string => {
    events.publish(sandboxRecord({ id }), change);
    return events.at(events.end - 1)?.id ?? '';
  };
  return { webhooks, publish, log, registry };
}

const idsOf = (deliveries: readonly Delivery[]): readonly string[] => deliveries.map(({ event }) => event.id);

async function deadLetters(): Promise<readonly { reason: string; last_error: string; event: { id: string } }[]> {
  const text = await readFile(join(directory, 'webhooks/dead-letters.jsonl'), 'utf8').catch(() => '');
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Awaited<ReturnType<typeof deadLetters>>[number]);
}

describe('a webhook', () => {
  it('gets every event it is for, signed, with an id for the event and one for the attempt', async () => {
    const types = ['sandbox.lifecycle.created', 'sandbox.lifecycle.killed'] as const;
    const { webhooks, publish } = await start({ types });
    await using _webhooks = webhooks;
    const first = publish();
    publish(ONE, { type: 'sandbox.lifecycle.resumed' });
    const last = publish(ONE, { type: 'sandbox.lifecycle.killed', reason: 'deleted', ranSince: undefined });
    await expect.poll(() => idsOf(receiver.accepted)).toEqual([first, last]);
    const [delivery] = receiver.accepted;
    expect(delivery?.headers).toMatchObject({
      'content-type': 'application/json',
      'webhook-id': first,
      'e2b-webhook-id': webhookId(receiver.url),
      'e2b-delivery-id': expect.stringMatching(/^[0-9a-f-]{36}$/),
      'e2b-signature-version': 'v1',
    });
    expect(delivery?.path).toBe('/hook?token=planted-token');
    expect(new Set(receiver.accepted.map(({ headers }) => headers['e2b-delivery-id'])).size).toBe(2);
  });

  it('can be verified by a program that shares nothing with this one', async () => {
    const { webhooks, publish } = await start();
    await using _webhooks = webhooks;
    publish();
    await expect.poll(() => receiver.accepted.length).toBe(1);
    const [delivery] = receiver.accepted;
    const program = [
      'import sys, json, hmac, hashlib, base64, time',
      'given = json.load(open(sys.argv[1]))',
      'secret, body, headers = given["secret"].encode(), given["body"].encode(), given["headers"]',
      'signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])',
      'keyed = "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()',
      'plain = base64.b64encode(hashlib.sha256(secret + body).digest()).decode().rstrip("=")',
      'fresh = abs(time.time() - int(headers["webhook-timestamp"])) < 300',
      'print(keyed == headers["webhook-signature"], plain == headers["e2b-signature"], fresh)',
    ].join('\n');
    const file = join(directory, 'delivery.json');
    await writeFile(file, JSON.stringify({ secret: SECRET, body: delivery?.body, headers: delivery?.headers }));
    const { stdout } = await promisify(execFile)('python3', ['-c', program, file]);
    expect(stdout.trim()).toBe('True True True');
  });

  it('that flaps gets every event in the order of its sandbox', { timeout: 30_000 }, async () => {
    let request = 0;
    receiver.behave((response, ...rest) => {
      if (request++ % 2 === 0) response.writeHead(503).end();
      else ACCEPT(response, ...rest);
    });
    const { webhooks, publish } = await start({ attempts: 30 });
    await using _webhooks = webhooks;
    const ofOne: string[] = [];
    const ofTwo: string[] = [];
    for (let index = 0; index < 4; index++) {
      ofOne.push(publish(ONE));
      ofTwo.push(publish(TWO));
    }
    await expect.poll(() => receiver.accepted.length, { timeout: 20_000 }).toBe(8);
    const of = (id: SandboxId) => idsOf(receiver.accepted.filter(({ event }) => event.sandbox_id === id));
    expect([of(ONE), of(TWO)]).toEqual([ofOne, ofTwo]);
    expect(await deadLetters()).toEqual([]);
  });

  const huge = 'x'.repeat(64 * 1024);
  const BAD: readonly (readonly [string, ReceiverBehaviour, RegExp])[] = [
    ['hangs', () => undefined, /^it did not answer within 0\.5 s$/],
    ['answers 500', (response) => void response.writeHead(500).end('no'), /^it answered 500$/],
    [
      'redirects',
      (response, { path }) => void response.writeHead(307, { location: path.replace('/hook', '/elsewhere') }).end(),
      /^it answered 307$/,
    ],
    ['closes the connection', (_response, _delivery, request) => void request.socket.destroy(), /socket hang up/],
    [
      'answers something else',
      (_response, _delivery, { socket }) => void socket.end('nonsense\r\n\r\n'),
      /Parse Error/,
    ],
    [
      'answers 500 with a body that never ends',
      (response) => {
        response.writeHead(500);
        const more = (): void => {
          while (!response.destroyed && response.write(huge));
        };
        response.on('drain', more);
        more();
      },
      /^it answered 500$/,
    ],
    [
      'answers 500 and hangs in its body',
      (response) => void response.writeHead(500).write('a'),
      /^it did not answer within 0\.5 s$/,
    ],
  ];
  it.each(BAD)(
    'that %s loses nothing but what is given up, and others wait for nothing',
    async (_what, behaviour, error) => {
      await using good = await startWebhookReceiver();
      receiver.behave(behaviour);
      const targets = [receiver, good].map(({ url }) => ({ url, secret: SECRET }));
      const { webhooks, publish, log } = await start({ attempts: 2, timeoutMs: 500, targets });
      await using _webhooks = webhooks;
      const ids = [publish(ONE), publish(TWO)];
      await expect.poll(() => idsOf(good.accepted)).toEqual(ids);
      await expect.poll(deadLetters, { timeout: 10_000 }).toHaveLength(2);
      const dead = await deadLetters();
      expect(new Set(dead.map(({ event }) => event.id))).toEqual(new Set(ids));
      for (const letter of dead) {
        expect(letter).toMatchObject({ reason: 'attempts-exhausted', last_error: expect.stringMatching(error) });
      }
      expect(receiver.deliveries).toHaveLength(4);
      expect(receiver.deliveries.every(({ path }) => path.startsWith('/hook'))).toBe(true);
      // It goes on with the next as if nothing had been.
      receiver.behave(ACCEPT);
      const next = publish(ONE);
      await expect.poll(() => idsOf(receiver.accepted)).toEqual([next]);
      const told = JSON.stringify([log.lines, dead]);
      expect(told).not.toContain('planted-secret');
      expect(told).not.toContain('planted-token');
    },
  );

  it('that accepts with a body that never ends has accepted', async () => {
    receiver.behave((response) => {
      response.writeHead(200);
      const more = (): void => {
        while (!response.destroyed && response.write(huge));
      };
      response.on('drain', more);
      more();
    });
    const { webhooks, publish, registry } = await start();
    await using _webhooks = webhooks;
    const ids = [publish(), publish()];
    await expect.poll(() => idsOf(receiver.accepted)).toEqual(ids);
    const webhook = webhookId(receiver.url);
    await expect
      .poll(() => registry.metrics())
      .toContain(`agentenv_webhook_attempts_total{webhook="${webhook}",result="accepted"} 2`);
    expect(await registry.metrics()).toContain(`agentenv_webhook_pending_events{webhook="${webhook}"} 0`);
  });
});

describe('the end of a server', () => {
  it('sends what can be sent at once, and leaves the rest to the next, which sends it first', async () => {
    receiver.behave((response, ...rest) => {
      if (rest[0].event.sandbox_id === TWO) response.writeHead(503).end();
      else ACCEPT(response, ...rest);
    });
    const former = await start({ attempts: 50 });
    const waiting = [former.publish(TWO), former.publish(TWO)];
    const sent = [former.publish(ONE), former.publish(ONE)];
    await former.webhooks[Symbol.asyncDispose]();
    expect(idsOf(receiver.accepted)).toEqual(sent);
    receiver.behave(ACCEPT);
    const next = await start();
    await using _webhooks = next.webhooks;
    const last = next.publish(TWO);
    await expect.poll(() => idsOf(receiver.accepted)).toEqual([...sent, ...waiting, last]);
  });

  it('does not wait for a receiver that hangs', async () => {
    receiver.behave(() => undefined);
    const { webhooks, publish } = await start({ timeoutMs: 60_000 });
    publish();
    await expect.poll(() => receiver.deliveries.length).toBe(1);
    const before = performance.now();
    await webhooks[Symbol.asyncDispose]();
    expect(performance.now() - before).toBeLessThan(10_000);
    expect(await deadLetters()).toEqual([]);
  });

  it('makes dead letters of what is for a webhook that is gone', async () => {
    receiver.behave((response) => void response.writeHead(503).end());
    const former = await start();
    const id = former.publish();
    await former.webhooks[Symbol.asyncDispose]();
    const next = await start({ targets: [] });
    await next.webhooks[Symbol.asyncDispose]();
    expect(await deadLetters()).toMatchObject([{ reason: 'webhook-removed', event: { id } }]);
  });
});

test('the example of a receiver takes what is genuine and nothing else', async () => {
  const program = join(import.meta.dirname, '../../../../e2e/example-webhook-receiver.ts');
  const example = spawn(process.execPath, [program, '0'], {
    env: { WEBHOOK_SECRET: SECRET },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await using _example = {
    async [Symbol.asyncDispose]() {
      const ended = once(example, 'close');
      example.kill('SIGKILL');
      await ended;
    },
  };
  let output = '';
  example.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  await expect.poll(() => output, { timeout: 20_000 }).toContain('\n');
  const url = /http:\S+/.exec(output)?.[0] ?? '';
  const targets = [url, receiver.url].map((target) => ({ url: target, secret: SECRET }));
  const { webhooks, publish } = await start({ targets });
  await using _webhooks = webhooks;
  const id = publish();
  await expect.poll(() => output).toContain(id);
  await expect.poll(() => receiver.accepted.length).toBe(1);

  // The other receiver was sent the same event, which a stranger might have seen.
  const [seen] = receiver.accepted;
  const genuine = Object.entries(seen?.headers ?? {}).filter(([name]) => name.startsWith('webhook-'));
  const post = async (changes: Record<string, string> = {}, body = seen?.body ?? '') => {
    const headers = { ...(Object.fromEntries(genuine) as Record<string, string>), ...changes };
    return (await fetch(url, { method: 'POST', headers, body })).status;
  };
  expect(await post()).toBe(204);
  expect(await post({ 'webhook-id': 'other' })).toBe(401);
  expect(await post({ 'webhook-timestamp': '1700000000' })).toBe(401);
  expect(await post({ 'webhook-timestamp': 'never' })).toBe(401);
  expect(await post({ 'webhook-signature': 'v1,AAAA' })).toBe(401);
  expect(await post({}, `${seen?.body ?? ''} `)).toBe(401);
  expect((await fetch(url, { method: 'POST', body: '{}' })).status).toBe(401);
  expect(output.match(/sandbox\.lifecycle/g)).toHaveLength(1);
});

test('a server sends what it did to the webhooks of its environment, after kill -9 too, and no receiver holds it up', async () => {
  const key = `e2b_${'ab'.repeat(20)}`;
  const environment = { AENV_API_KEY: key, AENV_WEBHOOK_URLS: receiver.url, AENV_WEBHOOK_SECRETS: SECRET };
  const options = { scratch: join(directory, 'server'), environment };
  receiver.behave(() => undefined);
  await using server = await startServerProcess(options);
  const url = await server.ready();
  const connection = { apiKey: key, apiUrl: url, sandboxUrl: url };
  const sandbox = await Sandbox.create('base', connection);
  await sandbox.pause();
  await Sandbox.connect(sandbox.sandboxId, connection);
  await expect.poll(() => receiver.deliveries.length).toBe(1);
  await server.end('SIGKILL');

  receiver.behave(ACCEPT);
  await using next = await startServerProcess(options);
  await next.ready();
  const types = () => receiver.accepted.map(({ event }) => event.type.replace('sandbox.lifecycle.', ''));
  await expect.poll(types).toEqual(['created', 'paused', 'resumed', 'killed']);
  expect(JSON.parse(receiver.accepted.at(-1)?.body ?? '')).toMatchObject({
    sandbox_id: sandbox.sandboxId,
    event_data: { reason: 'server-restarted' },
  });
  expect(await next.end('SIGTERM')).toBe(0);
  const output = server.output() + next.output();
  expect(output).toContain('lifecycle events are sent to a webhook');
  expect(output).not.toContain('planted-');
});
