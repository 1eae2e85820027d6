import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { CertificateFiles } from '../tls/certificates.ts';

/** Makes a certificate for `names` that vouches for itself, with OpenSSL's own program, in `directory`. */
export async function makeCertificate(directory: string, names: readonly string[]): Promise<CertificateFiles> {
  const files = { certificate: join(directory, 'cert.pem'), privateKey: join(directory, 'key.pem') };
  await promisify(execFile)('openssl', [
    ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'],
    ...['-keyout', files.privateKey, '-out', files.certificate, '-subj', `/CN=${names[0]}`],
    ...['-addext', `subjectAltName=${names.map((name) => `DNS:${name}`).join(',')}`],
  ]);
  return files;
}
