import type { Agent } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';

/** File systems whose changes elsewhere make no events here. */
const NETWORK = /^(?:nfs\d?|cifs|smb3|smbfs|9p|ceph|afs|glusterfs|lustre|fuse(?:\..*)?)$/;
/** More of the mount table than this is not looked at, bytes. */
const MAX_TABLE_BYTES = 1024 * 1024;

/**
 * Throws `invalid_argument` when a directory lies on a network file system, by the guest's own mount table. A link in
 * the middle of the path is not followed: such a path counts where it is written, not where it leads.
 */
export async function refuseNetworkMount(
  agent: Pick<Agent, 'readFile'>,
  path: string,
  signal: AbortSignal,
): Promise<void> {
  const type = typeOfMount(await readMountTable(agent, signal), path);
  if (type !== undefined && NETWORK.test(type)) {
    throw new PlatformError('invalid_argument', `cannot watch path on network filesystem: ${path}`);
  }
}

async function readMountTable(agent: Pick<Agent, 'readFile'>, signal: AbortSignal): Promise<string> {
  const { body } = await agent.readFile('/proc/self/mounts', undefined, signal);
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    chunks.push(chunk);
    bytes += chunk.length;
    if (bytes > MAX_TABLE_BYTES) break;
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** The type of the deepest mount a path lies on; of several at one place the last one covers the others. */
export function typeOfMount(table: string, path: string): string | undefined {
  let found: { readonly length: number; readonly type: string } | undefined;
  for (const line of table.split('\n')) {
    const [, point = '', type = ''] = line.split(' ');
    const place = unescapeOctal(point);
    const inside = place === '/' || path === place || path.startsWith(`${place}/`);
    if (place !== '' && inside && place.length >= (found?.length ?? 0)) found = { length: place.length, type };
  }
  return found?.type;
}

/** Spaces and the like are octal in the table. */
function unescapeOctal(field: string): string {
  return field.replaceAll(/\\([0-7]{3})/g, (_match, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}
