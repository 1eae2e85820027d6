import { createServer, type ServerResponse } from 'node:http';

/**
 * Child process: answers as a sandbox of `argv[2]` bytes would whose guest, channel and server cost nothing, so that what
 * remains is the SDK's own work. Files are given from memory, uploads counted and thrown away, a command's output is one
 * and the same message again and again. Prints its URL.
 */
const BYTES = Number(process.argv[2]);
const CHUNK = Buffer.alloc(32 * 1024);

/** A message of a Connect stream: flags, length, JSON. */
function envelope(flags: number, message: unknown): Buffer {
  const json = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(json.length, 1);
  return Buffer.concat([head, json]);
}

const START = envelope(0, { event: { start: { pid: 1 } } });
const DATA = envelope(0, { event: { data: { stdout: CHUNK.toString('base64') } } });
const END = [envelope(0, { event: { end: { exited: true, status: 'exit status 0' } } }), envelope(2, {})];

function pour(response: ServerResponse, part: Buffer, last: readonly Buffer[]): void {
  let left = BYTES / CHUNK.length;
  const go = (): void => {
    while (left > 0) {
      left -= 1;
      if (!response.write(part)) {
        response.once('drain', go);
        return;
      }
    }
    for (const end of last) response.write(end);
    response.end();
  };
  go();
}

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url ?? '/', 'http://localhost');
  if (pathname === '/files' && request.method === 'GET') {
    response.writeHead(200, { 'content-type': 'application/octet-stream', 'content-length': BYTES });
    pour(response, CHUNK, []);
    return;
  }
  request.resume().once('end', () => {
    if (pathname === '/files') {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify([{ name: 'file', type: 'file', path: '/tmp/file' }]));
    } else if (pathname === '/process.Process/Start') {
      response.writeHead(200, { 'content-type': 'application/connect+json' });
      response.write(START);
      pour(response, DATA, END);
    } else {
      response.writeHead(404).end();
    }
  });
});
server.listen(0, '127.0.0.1', () => {
  const address = server.address();
  if (address !== null && typeof address === 'object') console.log(`http://127.0.0.1:${address.port}`);
});
