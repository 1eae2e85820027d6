// Runs inside a sandbox, with nothing but what `base` has: an HTTP and WebSocket server on the loopback address alone.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';

const PORT = 3000;
const WEBSOCKET_GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

const server = createServer((request, response) => {
  const path = (request.url ?? '').split('?', 1)[0];
  if (path === '/mirror') {
    response.writeHead(200, { 'content-type': 'application/octet-stream' });
    request.pipe(response);
  } else if (path === '/events') {
    let count = 0;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const timer = setInterval(() => {
      response.write(`data: ${++count}\n\n`);
      if (count === 5) response.end();
    }, 200);
    response.on('close', () => clearInterval(timer));
  } else if (path === '/silence') {
    response.writeHead(200);
    response.write('begun');
  } else {
    const { method, url, headers } = request;
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ method, url, headers, address: request.socket.localAddress }));
  }
});

/** Echoes short frames, each in a piece of its own as small clients send them. */
server.on('upgrade', (request, socket) => {
  const key = createHash('sha1').update(`${request.headers['sec-websocket-key']}${WEBSOCKET_GUID}`).digest('base64');
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${key}\r\n\r\n`,
  );
  socket.on('data', (frame) => {
    const length = frame[1] & 0x7f;
    const mask = frame.subarray(2, 6);
    const payload = frame.subarray(6, 6 + length).map((byte, index) => byte ^ mask[index % 4]);
    socket.write(Buffer.concat([Buffer.from([frame[0], length]), payload]));
    if ((frame[0] & 0x0f) === 8) socket.end();
  });
  socket.on('error', () => socket.destroy());
});

server.listen(PORT, '127.0.0.1');
