import type { GuestUser } from '@agentenv/agent';
import { guestError } from './guest-error.ts';
import type { GuestFiles } from './guest-files.ts';

function rows(files: GuestFiles, path: string): string[][] {
  if (!files.has(path)) return [];
  return files
    .text(path)
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split(':'));
}

/** Looks a user up by name or decimal uid in the guest's own passwd and group, as the agent does on every call. */
export function lookupUser(files: GuestFiles, user: string): GuestUser {
  const row = rows(files, '/etc/passwd').find(([name, , uid]) => name === user || uid === user);
  if (row === undefined) throw guestError('UNKNOWN_USER', user);
  const [name = '', , uid, gid, , home = '/', shell = '/bin/sh'] = row;
  const groups = rows(files, '/etc/group')
    .filter(([, , , members = '']) => members.split(',').includes(name))
    .map(([, , id]) => Number(id));
  return { name, uid: Number(uid), gid: Number(gid), home, shell, groups };
}

/** The name of a uid or gid, the number itself when nobody has it. */
export function nameOf(files: GuestFiles, kind: 'user' | 'group', id: number): string {
  const row = rows(files, kind === 'user' ? '/etc/passwd' : '/etc/group').find(([, , number]) => number === String(id));
  return row?.[0] ?? String(id);
}

/** The files every fake root file system starts with. */
export const BASE_FILES: Readonly<Record<string, string>> = {
  '/etc/passwd': 'root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n',
  '/etc/group': 'root:x:0:\nsudo:x:27:user\nuser:x:1000:\n',
  '/etc/os-release': 'ID=debian\nVERSION_ID="12"\n',
};
