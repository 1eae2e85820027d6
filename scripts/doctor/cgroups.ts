import type { CheckResult } from './check.ts';

/** Where a host's cgroup controllers are. */
export interface CgroupLayout {
  /** Mount point of the cgroup v2 hierarchy and its controllers, when mounted. */
  readonly v2?: { readonly path: string; readonly controllers: readonly string[] };
  /** Controllers mounted as cgroup v1. */
  readonly v1: readonly string[];
}

/** Mount points of cgroup hierarchies in `/proc/self/mountinfo`: of v2, and the v1 controllers. */
export function parseCgroupMounts(mountinfo: string): { v2: string | undefined; v1: readonly string[] } {
  let v2: string | undefined;
  const v1: string[] = [];
  for (const line of mountinfo.split('\n')) {
    const [mount = '', source = ''] = line.split(' - ');
    const [type, , options = ''] = source.split(' ');
    if (type === 'cgroup2') v2 = mount.split(' ')[4];
    if (type === 'cgroup')
      v1.push(
        ...options.split(',').filter((option) => !/^(rw|ro|name=|xattr|clone_children|release_agent)/.test(option)),
      );
  }
  return { v2, v1 };
}

export function checkCgroups(layout: CgroupLayout): CheckResult {
  const name = 'cgroups';
  const v2 = layout.v2?.controllers ?? [];
  const found = [
    ...(layout.v2 === undefined ? [] : [`v2 at ${layout.v2.path}: ${v2.join(' ') || 'no controllers'}`]),
    ...(layout.v1.length === 0 ? [] : [`v1: ${layout.v1.join(' ')}`]),
  ].join('; ');
  const cpu = v2.includes('cpu') || layout.v1.includes('cpu');
  if (cpu) return { name, state: 'ok', detail: found };
  return {
    name,
    state: 'warning',
    detail: `${found || 'none mounted'}; without a cpu controller busy sandboxes compete with the server on equal terms`,
    remedy: 'mount cgroup v2 with the cpu controller',
  };
}
