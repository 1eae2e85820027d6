import { PlatformError, SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { createGateway } from './gateway.ts';
import { createNamespaces, type Namespaces } from './namespaces.ts';

const SLOT = { name: 'slot-1', path: '/netns/a-slot-1', mounted: true };

/** A former server's network that is there by name alone; what is done to it is noted. */
function formerNetwork(changes: Partial<Namespaces>) {
  const done: string[] = [];
  const namespaces: Namespaces = {
    path: (name) => `/netns/a-${name}`,
    leftovers: async () => [SLOT],
    async createGateway() {
      done.push('create');
    },
    takeOverGateway: async () => true,
    async createSlot() {},
    async deleteSlot() {},
    async deleteFiles(paths) {
      if (paths.length > 0) done.push(`delete ${paths.join(' ')}`);
    },
    async deleteGateway() {
      done.push('delete');
    },
    async nft() {},
    async [Symbol.asyncDispose]() {},
    ...changes,
  };
  return { done, namespaces };
}

function open(namespaces: Namespaces, hostAddresses: () => readonly string[] = () => []) {
  const { clock, log } = { clock: createFakeClock(), log: SILENT_LOG };
  return createGateway({ namespaces, clock, log, uplink: 'none', dnsServers: ['192.0.2.1'], hostAddresses });
}

describe('the gateway of a former server', () => {
  test('is gone on with, and so are its slots', async () => {
    const { done, namespaces } = formerNetwork({});
    const gateway = await open(namespaces);
    expect(gateway.left).toEqual([SLOT]);
    await gateway.abandon();
    expect(done).toEqual([]);
  });

  test('is replaced when it is not whole', async () => {
    const { done, namespaces } = formerNetwork({ takeOverGateway: async () => false });
    await using gateway = await open(namespaces);
    expect(gateway.left).toEqual([]);
    expect(done).toEqual([`delete ${SLOT.path}`, 'create']);
  });

  const busy = new PlatformError('deadline_exceeded', 'nft did not end within 15000 ms');
  test.each([
    ['the host is too busy to take it over', { takeOverGateway: () => Promise.reject(busy) }, undefined],
    ['what is left cannot be read', { leftovers: () => Promise.reject(new Error('EMFILE')) }, undefined],
    [
      'the addresses of the host cannot be read',
      {},
      () => {
        throw new Error('EAFNOSUPPORT');
      },
    ],
  ])('stays as it is for the next server when %s', async (_what, changes, hostAddresses) => {
    const { done, namespaces } = formerNetwork(changes);
    await expect(open(namespaces, hostAddresses)).rejects.toThrow();
    expect(done).toEqual([]);
  });

  test('is not whole when its rules cannot be replaced, but a command that takes too long says nothing of it', async () => {
    const failures = [new PlatformError('internal', 'nft failed with status 1: No such file or directory'), busy];
    const exec = () => Promise.reject(failures.shift());
    await using namespaces = createNamespaces({ directory: '/netns', prefix: 'a', exec, clock: createFakeClock() });
    expect(await namespaces.takeOverGateway('')).toBe(false);
    await expect(namespaces.takeOverGateway('')).rejects.toBe(busy);
  });
});
