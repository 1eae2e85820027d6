import type { Agent } from '@agentenv/agent';
import { expect, test } from 'vitest';
import { randomChunks } from '../files/testing/random-chunks.ts';
import { refuseNetworkMount, typeOfMount } from './network-mounts.ts';

const TABLE = `/dev/vda / overlay rw 0 0
server:/x /mnt/nfs nfs4 rw 0 0
tmpfs /mnt/nfs/local tmpfs rw 0 0
s3 /mnt/with\\040space fuse.s3fs rw 0 0
tmpfs /over tmpfs rw 0 0
//host/share /over cifs rw 0 0
`;

test.each([
  ['/', 'overlay'],
  ['/home/user', 'overlay'],
  ['/mnt/nfs', 'nfs4'],
  ['/mnt/nfs/deep/er', 'nfs4'],
  ['/mnt/nfsnot', 'overlay'],
  ['/mnt/nfs/local/x', 'tmpfs'],
  ['/mnt/with space/x', 'fuse.s3fs'],
  ['/over/x', 'cifs'],
])('%s is on %s', (path, type) => {
  expect(typeOfMount(TABLE, path)).toBe(type);
});

test('a watch on a network file system is refused by name, any other passes', async () => {
  const agent: Pick<Agent, 'readFile'> = {
    async readFile(path) {
      expect(path).toBe('/proc/self/mounts');
      return { entry: undefined as never, body: randomChunks(Buffer.from(TABLE), [10]) };
    },
  };
  const { signal } = new AbortController();
  await refuseNetworkMount(agent, '/home/user', signal);
  for (const path of ['/mnt/nfs/x', '/mnt/with space', '/over/x']) {
    await expect(refuseNetworkMount(agent, path, signal)).rejects.toThrow(
      expect.objectContaining({
        code: 'invalid_argument',
        message: `cannot watch path on network filesystem: ${path}`,
      }),
    );
  }
});
