import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request } from 'node:http';
import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startServer, type TestServer } from './lib/server.ts';
import { median } from './lib/statistics.ts';

let server: TestServer;
let sandbox: Sandbox;
beforeAll(async () => {
  server = await startServer();
  sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 900_000 });
});
afterAll(async () => {
  await sandbox.kill();
  await server.stop();
  await server[Symbol.asyncDispose]();
});

/** Types lines into a running `cat` and measures how long each takes to come back. */
async function echoTimes(count: number): Promise<number[]> {
  let resolveLine: (() => void) | undefined;
  const handle = await sandbox.commands.run('cat', {
    background: true,
    stdin: true,
    timeoutMs: 0,
    onStdout: () => resolveLine?.(),
  });
  const times: number[] = [];
  for (let index = 0; index < count; index++) {
    const echoed = new Promise<void>((resolve) => {
      resolveLine = resolve;
    });
    const start = performance.now();
    await sandbox.commands.sendStdin(handle.pid, `line ${index}\n`);
    await echoed;
    times.push(performance.now() - start);
  }
  await handle.kill();
  return times;
}

describe('bytes survive', () => {
  it('a 64 MiB random file up and down, equal to the last byte', { timeout: 240_000 }, async () => {
    const content = randomBytes(64 * 1024 * 1024);
    await sandbox.files.write('/home/user/big.bin', new Blob([content]), { useOctetStream: true });
    const back = await sandbox.files.read('/home/user/big.bin', { format: 'bytes' });
    expect(createHash('sha256').update(back).digest('hex')).toBe(createHash('sha256').update(content).digest('hex'));
    await sandbox.files.write('/home/user/big.bin', 'small now');
  });

  it('50 MB of numbered stdout, complete and in order', { timeout: 240_000 }, async () => {
    const lines = 50_000_000 / 10;
    let next = 1;
    let rest = '';
    await sandbox.commands.run(`seq -f %09.0f 1 ${lines}`, {
      timeoutMs: 0,
      onStdout: (text) => {
        const complete = (rest + text).split('\n');
        rest = complete.pop() ?? '';
        for (const line of complete) {
          if (Number(line) !== next) throw new Error(`expected line ${next}, got ${JSON.stringify(line)}`);
          next++;
        }
      },
    });
    expect(next - 1).toBe(lines);
  });
});

describe('one slow party delays nobody else', () => {
  it('a subscriber that stops reading leaves other commands and transfers alone', async () => {
    const { envdAccessToken } = (await (await server.api(`/sandboxes/${sandbox.sandboxId}`)).json()) as {
      envdAccessToken: string;
    };
    const body = Buffer.from(JSON.stringify({ process: { cmd: '/bin/bash', args: ['-c', 'yes'] }, stdin: false }));
    const envelope = Buffer.alloc(5);
    envelope.writeUInt32BE(body.length, 1);
    const stalled = request(`${server.url}/process.Process/Start`, {
      method: 'POST',
      headers: {
        'content-type': 'application/connect+json',
        'connect-protocol-version': '1',
        'e2b-sandbox-id': sandbox.sandboxId,
        'e2b-sandbox-port': '49983',
        'x-access-token': envdAccessToken,
      },
    });
    stalled.end(Buffer.concat([envelope, body]));
    const [response] = await once(stalled, 'response');
    response.pause();
    try {
      const start = performance.now();
      expect((await sandbox.commands.run('echo quick')).stdout).toBe('quick\n');
      await sandbox.files.write('/tmp/while-stalled', 'x'.repeat(1_000_000));
      expect((await sandbox.files.read('/tmp/while-stalled')).length).toBe(1_000_000);
      expect(performance.now() - start).toBeLessThan(15_000);
    } finally {
      stalled.destroy();
      for (const { pid, args } of await sandbox.commands.list()) {
        if (args.includes('yes')) await sandbox.commands.kill(pid);
      }
    }
  });

  it('a reader stuck on a FIFO and a recursive remove of 50 000 files leave a running cat its echo', {
    timeout: 300_000,
  }, async () => {
    await sandbox.commands.run(
      `mkdir -p /home/user/tree && cd /home/user/tree && python3 -c '
import os
for d in range(100):
    os.mkdir(str(d))
    for f in range(500):
        open(f"{d}/{f}", "w").close()
' && mkfifo /home/user/pipe`,
      { timeoutMs: 200_000 },
    );
    const idle = median(await echoTimes(15));
    const stuck = await sandbox.commands.run('cat /home/user/pipe', { background: true, timeoutMs: 0 });
    const refused = sandbox.files.read('/home/user/pipe').then(
      () => 'answered',
      () => 'refused',
    );
    const remove = sandbox.commands.run('rm -rf /home/user/tree', { timeoutMs: 200_000 });
    const busy = median(await echoTimes(15));
    await remove;
    await stuck.kill();
    expect(await refused).toBe('refused');
    expect(busy - idle).toBeLessThanOrEqual(100);
  });
});
