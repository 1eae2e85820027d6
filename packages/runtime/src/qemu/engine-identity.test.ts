import { describe, expect, test } from 'vitest';
import { readIdentity } from './engine-identity.ts';

const artifact = { path: '/home/templates/t/memory.base', size: 4_096, sha256: 'c0ffee' };
const IDENTITY = {
  ...{ backend: 'qemu', instanceId: 'i1', pid: 42, startTime: 7, name: 'aenv-0-1', uuid: 'u', slot: 3, uid: 62_003 },
  ...{ mapped: '/home/layers/1/memory.base', diskBase: '/home/layers/1/disk.raw', hostInteractionIp: '10.11.0.3' },
  rootfs: { path: '/artifacts/base.ext4', digest: 'd' },
  fingerprint: { engine: 'qemu 7.2' },
  origin: { memory: artifact, disk: artifact },
};

describe('what the ledger has of an engine', () => {
  test.for([
    ['of a restored one', {}],
    ['of one that was booted on a captured disk', { origin: { disk: artifact } }],
    ['of one that was booted on an empty disk', { origin: undefined }],
    ['with more than this server knows', { later: { added: true } }],
  ] as const)('%s is enough', ([, more]) => {
    const identity = { ...IDENTITY, ...more };
    expect(readIdentity(JSON.parse(JSON.stringify(identity)))).toEqual(JSON.parse(JSON.stringify(identity)));
  });

  test('none is too little', () => {
    expect(readIdentity(undefined)).toBeUndefined();
  });

  test.for(Object.keys(IDENTITY).filter((key) => key !== 'origin'))('without %s it is too little', (key) => {
    const { [key]: _, ...rest } = IDENTITY as Record<string, unknown>;
    expect(readIdentity(rest)).toBeUndefined();
    expect(readIdentity({ ...rest, [key]: null })).toBeUndefined();
  });

  test.for([null, {}, { memory: artifact }, { memory: { path: 1, size: 1 }, disk: artifact }])(
    'an origin like %j is too little',
    (origin) => {
      expect(readIdentity({ ...IDENTITY, origin })).toBeUndefined();
    },
  );
});
