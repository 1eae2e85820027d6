/** Modules the guest's init loads at boot (its devices and the overlay root), before their dependencies are added. */
export const BOOT_MODULES = [
  'virtio_pci',
  'virtio_mmio',
  'virtio_console',
  'virtio_blk',
  'virtio_net',
  'virtio_rng',
  'overlay',
] as const;

/** Modules kept for `modprobe` in the guest: tunnels, bridges and packet filters that container tools ask for. */
export const EXTRA_MODULES = [
  'tun',
  'veth',
  'bridge',
  'br_netfilter',
  'dummy',
  'fuse',
  'loop',
  'erofs',
  'squashfs',
  'nf_tables',
  'nft_chain_nat',
  'nft_compat',
  'nft_ct',
  'nft_masq',
  'nft_nat',
  'nft_reject_inet',
  'ip_tables',
  'iptable_filter',
  'iptable_nat',
  'ip6_tables',
  'ip6table_filter',
  'ip6table_nat',
  'xt_MASQUERADE',
  'xt_addrtype',
  'xt_comment',
  'xt_conntrack',
  'xt_tcpudp',
] as const;

/** A kernel's modules as depmod describes them. Names are normalised: `-` counts as `_`. */
export interface ModuleTable {
  /** Path below `lib/modules/VERSION` and the paths it needs, nearest first, by name. */
  readonly modules: ReadonlyMap<string, { readonly path: string; readonly needs: readonly string[] }>;
  readonly builtin: ReadonlySet<string>;
}

/** The kernel's name of a module file: `kernel/drivers/char/virtio-rng.ko.xz` is `virtio_rng`. */
export function moduleName(path: string): string {
  return (path.split('/').at(-1) ?? '').replace(/\.ko(\.\w+)?$/, '').replaceAll('-', '_');
}

/** Reads `modules.dep` (`path: needed needed …`) and `modules.builtin` (one path a line). */
export function parseModuleTable(modulesDep: string, modulesBuiltin: string): ModuleTable {
  const modules = new Map<string, { path: string; needs: string[] }>();
  for (const line of modulesDep.split('\n')) {
    const [path, needs] = line.split(':');
    if (path === undefined || needs === undefined) continue;
    modules.set(moduleName(path), { path, needs: needs.split(' ').filter((need) => need !== '') });
  }
  const builtin = new Set(
    modulesBuiltin
      .split('\n')
      .filter((line) => line !== '')
      .map(moduleName),
  );
  return { modules, builtin };
}

/**
 * Paths of the named modules and all they need, each after what it needs and once. A name that is built into the
 * kernel is left out; `missing` collects names this kernel does not have at all.
 */
export function loadOrder(
  names: readonly string[],
  table: ModuleTable,
): { paths: readonly string[]; missing: readonly string[] } {
  const paths = new Set<string>();
  const missing: string[] = [];
  for (const name of names) {
    const found = table.modules.get(name);
    if (found === undefined) {
      if (!table.builtin.has(name)) missing.push(name);
      continue;
    }
    for (const need of found.needs.toReversed()) paths.add(need);
    paths.add(found.path);
  }
  return { paths: [...paths], missing };
}
