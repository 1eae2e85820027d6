import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SILENT_LOG } from '@agentenv/core';
import { describe, expect, test, vi } from 'vitest';
import { chooseResolver, createFixedResolvers, createHostResolvers, nameServers } from './resolvers.ts';

describe('resolv.conf', () => {
  test('lists IPv4 name servers in order and skips everything else', () => {
    const text = [
      '# nameserver 192.0.2.9',
      'search example.test',
      'nameserver fe80::1%eth0',
      'nameserver 0.0.0.0',
      'nameserver\t192.0.2.1  # trailing',
      '  nameserver 127.0.0.53',
      'nameserver nonsense',
      'nameservers 192.0.2.8',
      'nameserver 192.0.2.2',
    ].join('\n');
    expect(nameServers(text)).toEqual(['192.0.2.1', '127.0.0.53', '192.0.2.2']);
  });

  test('the first server that is not a loopback address wins, over all files', () => {
    const loopback = 'nameserver 127.0.0.53\n';
    expect(chooseResolver(['', 'nameserver 192.0.2.1'])).toEqual({ kind: 'server', address: '192.0.2.1' });
    expect(chooseResolver([loopback, 'nameserver 10.0.0.2'])).toEqual({ kind: 'server', address: '10.0.0.2' });
    expect(chooseResolver([loopback, 'nameserver 127.0.0.1'])).toEqual({ kind: 'loopback', address: '127.0.0.53' });
    expect(chooseResolver(['', 'nameserver ::1'])).toEqual({ kind: 'none' });
    expect(chooseResolver([])).toEqual({ kind: 'none' });
  });
});

describe('resolver sources', () => {
  test("the host's files are read anew, missing ones are empty, a replacement is noticed", async () => {
    const directory = await mkdtemp(join(tmpdir(), 'aenv-resolv-'));
    const file = join(directory, 'resolv.conf');
    let changes = 0;
    const files = [join(directory, 'absent', 'resolv.conf'), file];
    using source = createHostResolvers({ files, onChange: () => changes++, log: SILENT_LOG });
    try {
      expect(await source.read()).toEqual({ kind: 'none' });
      await writeFile(`${file}.new`, 'nameserver 192.0.2.1\n');
      await rename(`${file}.new`, file);
      await vi.waitFor(() => expect(changes).toBeGreaterThan(0));
      expect(await source.read()).toEqual({ kind: 'server', address: '192.0.2.1' });
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });

  test('servers named by the operator are taken in order', async () => {
    using source = createFixedResolvers(['127.0.0.1', '192.0.2.5']);
    expect(await source.read()).toEqual({ kind: 'server', address: '192.0.2.5' });
  });
});
