import { createHash } from 'node:crypto';

export interface SignedFileRequest {
  /** The decoded `path` query value as given, nothing resolved; empty when absent. */
  readonly path: string;
  readonly operation: 'read' | 'write';
  /** The decoded `username` query value; empty when absent. */
  readonly username: string;
  /** The `signature_expiration` query value as given, Unix seconds; undefined when absent. */
  readonly expiration: string | undefined;
}

/** The signature that lets whoever holds it do one file operation (contract e2b.md section 8.1). */
export function signFileRequest(request: SignedFileRequest, accessToken: string): string {
  const parts = [request.path, request.operation, request.username, accessToken];
  if (request.expiration !== undefined) parts.push(request.expiration);
  const digest = createHash('sha256').update(parts.join(':'), 'utf8').digest('base64');
  return `v1_${digest.replace(/=+$/, '')}`;
}
