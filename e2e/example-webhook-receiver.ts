import { createHmac, timingSafeEqual } from 'node:crypto';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';

/*
 * A receiver of lifecycle events to begin with (docs/events.md): it believes nothing that is not signed, old or seen before,
 * answers at once, and prints every event.
 *
 *   export WEBHOOK_SECRET="$(head -c 24 /dev/urandom | base64)"
 *   node e2e/example-webhook-receiver.ts 9001
 *   AENV_WEBHOOK_URLS=http://127.0.0.1:9001/ AENV_WEBHOOK_SECRETS="$WEBHOOK_SECRET" ./aenv server
 */

/** Metadata may have 256 KiB, and JSON may make six bytes of one. */
const MAX_BODY = 4 * 1024 * 1024;
/** How old an attempt may be, and how far ahead its clock, seconds. */
const TOLERANCE = 300;
/** Ids that are remembered: an event may come again when the answer to it was lost. */
const MAX_SEEN = 10_000;

const secret = process.env.WEBHOOK_SECRET ?? '';
if (secret === '') throw new Error('WEBHOOK_SECRET is not set');
const key = secret.startsWith('whsec_') ? Buffer.from(secret.slice(6), 'base64') : Buffer.from(secret);
const seen = new Set<string>();

/** Whether these headers are the server's, of now, and belong to this body. */
function isGenuine(headers: IncomingHttpHeaders, body: Buffer): boolean {
  const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature } = headers;
  if (typeof id !== 'string' || typeof timestamp !== 'string' || typeof signature !== 'string') return false;
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= TOLERANCE)) return false;
  const expected = Buffer.from(
    `v1,${createHmac('sha256', key).update(`${id}.${timestamp}.`).update(body).digest('base64')}`,
  );
  const given = Buffer.from(signature);
  return given.length === expected.length && timingSafeEqual(given, expected);
}

/** False for an event that came before. */
function isNew(id: string): boolean {
  if (seen.has(id)) return false;
  seen.add(id);
  for (const oldest of seen) {
    if (seen.size <= MAX_SEEN) break;
    seen.delete(oldest);
  }
  return true;
}

const server = createServer(async (request, response) => {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of request as AsyncIterable<Buffer>) {
    bytes += piece.byteLength;
    if (bytes > MAX_BODY) {
      response.writeHead(413, { connection: 'close' }).end();
      return;
    }
    pieces.push(piece);
  }
  const body = Buffer.concat(pieces);
  if (!isGenuine(request.headers, body)) {
    response.writeHead(401).end();
    return;
  }
  // Whatever takes long comes after the answer: an attempt that takes too long is made again.
  response.writeHead(204).end();
  if (isNew(String(request.headers['webhook-id']))) console.log(body.toString());
});
server.listen(Number(process.argv[2] ?? 9001), '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
});
