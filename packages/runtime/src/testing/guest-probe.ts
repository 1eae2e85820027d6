import { createSocket } from 'node:dgram';
import { Resolver } from 'node:dns/promises';
import { connect, type Socket } from 'node:net';
import { serveRequests } from './namespace-program.ts';

/** What a program in a sandbox tries on the network; answers are `{ outcome, ms, … }`. */
const held = new Map<string, Socket>();

interface Attempt {
  readonly outcome: string;
  readonly reply?: string;
}

interface Transfer {
  readonly timeoutMs: number;
  readonly payload: string;
  /** Ends the attempt after that many bytes; an echo would not end by itself. */
  readonly expectBytes: number;
  readonly keep: string | undefined;
}

function tcp(host: string, port: number, { timeoutMs, payload, expectBytes, keep }: Transfer): Promise<Attempt> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: timeoutMs });
    let reply = '';
    const finish = (attempt: Attempt) => {
      if (keep === undefined || attempt.outcome !== 'connected') socket.destroy();
      else held.set(keep, socket);
      resolve(attempt);
    };
    socket.on('connect', () => socket.write(payload));
    socket.on('data', (data) => {
      reply += data.toString();
      if (port === 7 && reply.length >= expectBytes) finish({ outcome: 'connected', reply });
    });
    socket.on('end', () => finish({ outcome: 'connected', reply }));
    socket.on('timeout', () => finish({ outcome: 'timeout' }));
    socket.on('error', (error) => finish({ outcome: 'code' in error ? String(error.code) : error.message }));
  });
}

interface Datagram {
  readonly timeoutMs: number;
  readonly payload: string | Uint8Array;
  readonly source: string | undefined;
  readonly sourcePort: number;
}

function udp(host: string, port: number, { timeoutMs, payload, source, sourcePort }: Datagram): Promise<Attempt> {
  return new Promise((resolve) => {
    const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4');
    const timer = setTimeout(() => finish('timeout'), timeoutMs);
    const finish = (outcome: string, reply?: string) => {
      clearTimeout(timer);
      socket.close();
      resolve({ outcome, ...(reply !== undefined && { reply }) });
    };
    socket.once('error', (error) => finish('code' in error ? String(error.code) : error.message));
    socket.once('message', (data) => finish('answered', data.toString()));
    // Connected, so that an ICMP error is reported.
    socket.bind(sourcePort, source, () => socket.connect(port, host, () => socket.send(payload)));
  });
}

async function dns(server: string, name: string, timeoutMs: number): Promise<Attempt> {
  const resolver = new Resolver({ timeout: timeoutMs, tries: 1 });
  resolver.setServers([server]);
  try {
    return { outcome: 'answered', reply: (await resolver.resolve4(name)).join() };
  } catch (error) {
    return { outcome: error instanceof Error && 'code' in error ? String(error.code) : String(error) };
  }
}

/** A query for an address of `a.example`, behind its length as TCP wants it. */
const DNS_QUERY = Buffer.from('001b12340100000100000000000001610765786d61706c650000010001', 'hex');

/** One query over TCP by hand, because the resolver only falls back to it. */
function dnsOverTcp(server: string, timeoutMs: number): Promise<Attempt> {
  return new Promise((resolve) => {
    const socket = connect({ host: server, port: 53, timeout: timeoutMs });
    const finish = (outcome: string) => {
      socket.destroy();
      resolve({ outcome });
    };
    socket.on('connect', () => socket.write(DNS_QUERY));
    socket.on('data', () => finish('answered'));
    socket.on('timeout', () => finish('timeout'));
    socket.on('error', (error) => finish('code' in error ? String(error.code) : error.message));
  });
}

function send(id: string, payload: string, timeoutMs: number): Promise<Attempt> {
  const socket = held.get(id);
  return new Promise((resolve) => {
    if (socket === undefined) return resolve({ outcome: 'unknown' });
    const timer = setTimeout(() => resolve({ outcome: 'timeout' }), timeoutMs);
    socket.once('data', (data) => {
      clearTimeout(timer);
      resolve({ outcome: 'answered', reply: data.toString() });
    });
    socket.write(payload);
  });
}

async function attempt(request: Record<string, unknown>): Promise<Attempt> {
  const {
    op,
    host = '',
    port = 0,
    timeoutMs = 2_000,
    payload = 'ping',
    expectBytes = 1,
    keep,
    source,
    sourcePort = 0,
  } = request as {
    readonly op: string;
    readonly host?: string;
    readonly port?: number;
    readonly timeoutMs?: number;
    readonly payload?: string;
    readonly expectBytes?: number;
    readonly keep?: string;
    readonly source?: string;
    readonly sourcePort?: number;
  };
  if (op === 'tcp') return tcp(host, port, { timeoutMs, payload, expectBytes, keep });
  if (op === 'udp') return udp(host, port, { timeoutMs, payload, source, sourcePort });
  if (op === 'dns-udp') return udp(host, 53, { timeoutMs, payload: DNS_QUERY.subarray(2), source, sourcePort });
  if (op === 'dns') return dns(host, 'example.test', timeoutMs);
  if (op === 'dns-tcp') return dnsOverTcp(host, timeoutMs);
  if (op === 'send') return send(keep ?? '', payload, timeoutMs);
  return { outcome: 'unknown' };
}

serveRequests(async (request) => {
  const start = performance.now();
  const result = await attempt(request);
  return { ...result, ms: performance.now() - start };
});
