import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';
import { serveRequests } from './namespace-program.ts';

/**
 * What answers in the fake internet, on each address given as an argument: TCP 7 and UDP 7 echo, TCP 9 resets, TCP 80 answers HTTP with
 * the addresses it saw, port 53 answers every name with `198.51.100.7`, over UDP and TCP. Request `seen` lists what arrived.
 */
interface Arrival {
  readonly protocol: 'tcp' | 'udp';
  readonly local: string;
  readonly port: number;
  readonly remote: string;
}

const MAX_ARRIVALS = 100_000;
const arrivals: Arrival[] = [];
const ANSWER = [198, 51, 100, 7];

function note(arrival: Arrival): void {
  if (arrivals.length < MAX_ARRIVALS) arrivals.push(arrival);
}

function plain(address: string | undefined): string {
  return (address ?? '').replace(/^::ffff:/, '');
}

/** A response with one A record; the question is copied. */
function dnsAnswer(query: Buffer): Buffer {
  let end = 12;
  while (end < query.length && query[end] !== 0) end += (query[end] ?? 0) + 1;
  end += 5;
  const header = Buffer.from(query.subarray(0, 12));
  header.writeUInt16BE(0x8180, 2);
  const isA = query.readUInt16BE(end - 4) === 1;
  header.writeUInt16BE(isA ? 1 : 0, 6);
  header.fill(0, 8, 12);
  const record = Buffer.from([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...ANSWER]);
  return Buffer.concat([header, query.subarray(12, end), ...(isA ? [record] : [])]);
}

async function listenTcp(port: number): Promise<void> {
  const server = createServer((socket) => {
    const local = plain(socket.localAddress);
    const remote = plain(socket.remoteAddress);
    note({ protocol: 'tcp', local, port, remote });
    // Clients of the tests reset connections; that is their business.
    socket.on('error', () => {});
    if (port === 7) socket.pipe(socket);
    else if (port === 9) socket.once('data', () => socket.resetAndDestroy());
    else if (port === 53) socket.once('data', (data) => answerTcp(socket, Buffer.from(data)));
    else socket.once('data', () => socket.end(`HTTP/1.0 200 OK\r\n\r\n${JSON.stringify({ local, remote })}`));
  });
  await new Promise<void>((resolve) => server.listen({ port, host: '::' }, resolve));
}

function answerTcp(socket: { end(data: Buffer): unknown }, data: Buffer): void {
  const answer = dnsAnswer(data.subarray(2));
  const length = Buffer.alloc(2);
  length.writeUInt16BE(answer.length);
  socket.end(Buffer.concat([length, answer]));
}

async function listenUdp(address: string, port: number): Promise<void> {
  const socket = createSocket(address.includes(':') ? 'udp6' : 'udp4');
  socket.on('message', (data, peer) => {
    note({ protocol: 'udp', local: address, port, remote: peer.address });
    socket.send(port === 53 ? dnsAnswer(data) : data, peer.port, peer.address);
  });
  await new Promise<void>((resolve) => socket.bind(port, address, resolve));
}

const ports = { tcp: [7, 9, 53, 80], udp: [7, 53] };
await Promise.all([
  ...ports.tcp.map(listenTcp),
  ...process.argv.slice(2).flatMap((address) => ports.udp.map((port) => listenUdp(address, port))),
]);
serveRequests(({ op }) => (op === 'seen' ? arrivals.splice(0) : undefined));
