import { createServer } from 'node:http';

/** Child process: gives `?bytes=N` and counts what it is given; prints `ready` when it listens on the port of `argv`. */
const CHUNK = Buffer.alloc(64 * 1024, 0x61);

const server = createServer((request, response) => {
  const bytes = Number(/\?bytes=(\d+)/.exec(request.url ?? '')?.[1] ?? 0);
  if (request.method === 'POST') {
    let received = 0;
    request.on('data', (chunk: Buffer) => {
      received += chunk.length;
    });
    request.once('end', () => response.end(String(received)));
    return;
  }
  response.writeHead(200, { 'content-length': bytes });
  let left = bytes;
  const go = (): void => {
    while (left > 0) {
      const chunk = left < CHUNK.length ? CHUNK.subarray(0, left) : CHUNK;
      left -= chunk.length;
      if (!response.write(chunk)) {
        response.once('drain', go);
        return;
      }
    }
    response.end();
  };
  go();
});
server.listen(Number(process.argv[2]), '127.0.0.1', () => console.log('ready'));
