import { describe, expect, it } from 'vitest';
import { loadOrder, moduleName, parseModuleTable } from './modules.ts';

const DEP = `kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/net/virtio_net.ko.xz: kernel/net/core/net_failover.ko kernel/net/core/failover.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/char/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/net/core/net_failover.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
`;
const table = parseModuleTable(DEP, 'kernel/fs/ext4/ext4.ko\nkernel/drivers/block/virtio-pci.ko\n');

describe('module selection', () => {
  it('names a module as the kernel does, whatever its file is called', () => {
    expect(moduleName('kernel/drivers/char/virtio-rng.ko')).toBe('virtio_rng');
    expect(moduleName('kernel/drivers/net/virtio_net.ko.xz')).toBe('virtio_net');
  });

  it('loads what a module needs before it, furthest first, and nothing twice', () => {
    expect(loadOrder(['virtio_net', 'virtio_rng'], table)).toEqual({
      paths: [
        'kernel/drivers/virtio/virtio.ko',
        'kernel/drivers/virtio/virtio_ring.ko',
        'kernel/net/core/failover.ko',
        'kernel/net/core/net_failover.ko',
        'kernel/drivers/net/virtio_net.ko.xz',
        'kernel/drivers/char/virtio-rng.ko',
      ],
      missing: [],
    });
  });

  it('leaves out what is built in and names what is not there', () => {
    expect(loadOrder(['ext4', 'virtio_pci', 'nonsense'], table)).toEqual({ paths: [], missing: ['nonsense'] });
  });
});
