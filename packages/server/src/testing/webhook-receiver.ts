import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** One request as it arrived. */
export interface Delivery {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
  readonly event: { readonly id: string; readonly type: string; readonly sandbox_id: string };
}

/** Deals with one request; what it does not answer hangs. */
export type ReceiverBehaviour = (response: ServerResponse, delivery: Delivery, request: IncomingMessage) => void;

/** A receiver of webhooks: a real HTTP server that notes what comes and behaves as a test wants. */
export interface WebhookReceiver extends AsyncDisposable {
  readonly url: string;
  readonly deliveries: Delivery[];
  /** Deliveries that were answered 2xx, in order. */
  readonly accepted: Delivery[];
  behave(behaviour: ReceiverBehaviour): void;
}

export const ACCEPT: ReceiverBehaviour = (response) => void response.writeHead(204).end();

export async function startWebhookReceiver(): Promise<WebhookReceiver> {
  const deliveries: Delivery[] = [];
  const accepted: Delivery[] = [];
  let behaviour = ACCEPT;
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on('error', () => undefined);
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      const body = Buffer.concat(pieces).toString();
      const delivery = {
        path: request.url ?? '',
        headers: request.headers,
        body,
        event: JSON.parse(body) as Delivery['event'],
      };
      deliveries.push(delivery);
      response.on('error', () => undefined);
      behaviour(response, delivery, request);
      if (response.headersSent && response.statusCode >= 200 && response.statusCode < 300) accepted.push(delivery);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/hook?token=planted-token`,
    deliveries,
    accepted,
    behave(next) {
      behaviour = next;
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
