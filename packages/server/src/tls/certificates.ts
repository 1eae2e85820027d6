import { X509Certificate } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { createSecureContext, type SecureContext } from 'node:tls';
import { type Clock, type Log, PlatformError } from '@agentenv/core';

/** A certificate (with its chain) and its key, PEM files of this host. */
export interface CertificateFiles {
  readonly certificate: string;
  readonly privateKey: string;
}

/** The certificates of a listener, read anew when their files change. */
export interface Certificates extends Disposable {
  /** PEM of the first one, for clients that name nobody. */
  readonly standard: { readonly cert: Buffer; readonly key: Buffer };
  /** The first certificate that is valid for a host; undefined when none is. */
  find(host: string): SecureContext | undefined;
}

export interface CertificatesOptions {
  readonly files: readonly CertificateFiles[];
  readonly clock: Clock;
  readonly log: Log;
  /** How often the files are looked at, milliseconds. */
  readonly checkMs: number;
  /** Called when others have taken the place of the former ones. */
  readonly onChange?: () => void;
}

interface Loaded {
  readonly x509: X509Certificate;
  readonly context: SecureContext;
  readonly pem: Certificates['standard'];
}

/** Oldest protocol that is spoken. */
export const MIN_TLS_VERSION = 'TLSv1.2';

/**
 * Loads certificates; rejects with `invalid_argument` naming the file that cannot be used. Files that become unusable
 * later are logged, and what was loaded before stays in use: renewals may be seen half written.
 */
export async function loadCertificates(options: CertificatesOptions): Promise<Certificates> {
  const { files, clock, log } = options;
  let seen = await signatureOf(files);
  let loaded = await loadAll(files);
  let timer: Disposable | undefined;
  let disposed = false;

  async function look(): Promise<void> {
    try {
      const signature = await signatureOf(files);
      if (signature === seen) return;
      loaded = await loadAll(files);
      seen = signature;
      log.info({ validTo: loaded.map(({ x509 }) => x509.validTo) }, 'certificates were loaded anew');
      options.onChange?.();
    } catch (error) {
      log.warn({ err: error }, 'changed certificates cannot be used');
    }
  }

  function schedule(): void {
    if (disposed) return;
    timer = clock.timer(options.checkMs, () => void look().then(schedule));
  }

  schedule();
  return {
    get standard() {
      const [first] = loaded;
      if (first === undefined) throw new PlatformError('internal', 'a TLS listener without a certificate');
      return first.pem;
    },
    find: (host) => loaded.find(({ x509 }) => x509.checkHost(host) !== undefined)?.context,
    [Symbol.dispose]() {
      disposed = true;
      timer?.[Symbol.dispose]();
    },
  };
}

/** Rejects with `invalid_argument` naming the file and its key when one of them cannot be used. */
export async function requireCertificates(files: readonly CertificateFiles[]): Promise<void> {
  await loadAll(files);
}

async function signatureOf(files: readonly CertificateFiles[]): Promise<string> {
  const paths = files.flatMap(({ certificate, privateKey }) => [certificate, privateKey]);
  const parts = await Promise.all(
    paths.map(async (path) => {
      const { mtimeMs, size, ino } = await stat(path).catch((error: unknown) => unusable(path, error));
      return `${mtimeMs} ${size} ${ino}`;
    }),
  );
  return parts.join(';');
}

function loadAll(files: readonly CertificateFiles[]): Promise<Loaded[]> {
  return Promise.all(
    files.map(async ({ certificate, privateKey }) => {
      const cert = await readFile(certificate).catch((error: unknown) =>
        unusable(`${certificate} (tls.certificates)`, error),
      );
      const key = await readFile(privateKey).catch((error: unknown) =>
        unusable(`${privateKey} (tls.private_keys)`, error),
      );
      try {
        const x509 = new X509Certificate(cert);
        return { x509, context: createSecureContext({ cert, key, minVersion: MIN_TLS_VERSION }), pem: { cert, key } };
      } catch (error) {
        return unusable(`the certificate ${certificate} with the key ${privateKey}`, error);
      }
    }),
  );
}

function unusable(what: string, error: unknown): never {
  const reason = error instanceof Error ? error.message : String(error);
  throw new PlatformError('invalid_argument', `cannot use ${what}: ${reason}`, { cause: error });
}
