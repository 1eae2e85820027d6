import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { makeCertificate } from '../testing/certificates.ts';
import { freePort } from '../testing/free-port.ts';
import { startServerProcess } from '../testing/server-process.ts';

const PROGRAM = join(import.meta.dirname, '../testing/sdk-over-tls.ts');

describe('a server with a domain and a certificate', () => {
  it('serves the published SDK that knows nothing else', { timeout: 120_000 }, async () => {
    const scratch = await mkdtemp(join(tmpdir(), 'aenv-tls-sdk-'));
    try {
      const files = await makeCertificate(scratch, ['*.sandboxes.test']);
      const port = await freePort();
      await using server = await startServerProcess({
        scratch,
        config: [
          'backend = "fake"',
          `tls.addr = "127.0.0.1:${port}"`,
          // Relative to the configuration, which is in the same directory.
          'tls.certificates = ["cert.pem"]',
          'tls.private_keys = ["key.pem"]',
          `sandbox_proxy.domains = ["sandboxes.test:${port}"]`,
        ].join('\n'),
      });
      const url = await server.ready();
      const apiKey = (await readFile(join(server.home, 'secrets/api-key'), 'utf8')).trim();
      const { stdout } = await promisify(execFile)(process.execPath, [PROGRAM], {
        env: {
          PATH: process.env.PATH,
          E2B_DOMAIN: `sandboxes.test:${port}`,
          E2B_API_KEY: apiKey,
          NODE_EXTRA_CA_CERTS: files.certificate,
        },
        timeout: 60_000,
      });
      const seen = JSON.parse(stdout);
      expect(seen).toMatchObject({
        ...{ stdout: 'hello\n', note: 'kept', signed: 'kept', running: true, killed: true, runningAfter: false },
        host: `3000-${seen.id}.sandboxes.test:${port}`,
        port: { sandboxId: seen.id, message: 'The sandbox is running but port is not open', port: 3000, code: 502 },
      });
      const metrics = await (await fetch(`${url}/metrics`)).text();
      expect(metrics).toContain('route="/v2/sandboxes"');
      expect(metrics).toContain('route_source="proxy_host"');
      expect(await server.end('SIGTERM')).toBe(0);
    } finally {
      await rm(scratch, { recursive: true, force: true });
    }
  });
});
