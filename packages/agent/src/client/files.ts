import type { Agent, GuestEntry, ListPage, WriteFileRequest } from '../agent.ts';
import type { ResponseBody } from '../channel/calls.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import type { ClientContext } from './context.ts';
import { DEADLINES } from './deadlines.ts';
import { createDownload } from './download.ts';
import { entryOf, onlyEntry } from './entry.ts';
import { upload } from './upload.ts';

type Files = Pick<
  Agent,
  'lookupUser' | 'stat' | 'listDir' | 'makeDir' | 'rename' | 'remove' | 'readFile' | 'writeFile' | 'composeFile'
>;

/** read-file: as many bytes as there are. */
const TO_THE_END = 0xffff_ffff_ffff_ffffn;

const NOTHING = new Uint8Array();

/** A page that is empty and not the last one would have its reader ask for ever. */
function pageOf({ entries, next }: ResponseBody<'listDir'>): ListPage {
  if (next.length > 0 && entries.length === 0) throw new ProtocolViolation('a page of a listing without entries');
  return { entries: entries.map(entryOf), next: next.length > 0 ? next : undefined };
}

const xattrRows = (xattrs: WriteFileRequest['xattrs']): { readonly name: string; readonly value: Uint8Array }[] =>
  [...xattrs].map(([name, value]) => ({ name, value }));

/** Creates the file primitives of one channel. */
export function createFiles(context: ClientContext): Files {
  const { calls, clock } = context;
  return {
    async lookupUser(user, signal) {
      return await calls.call('lookupUser', { user }, { deadlineMs: DEADLINES.lookupUser, signal });
    },

    async stat(path, signal) {
      const options = { deadlineMs: DEADLINES.stat, signal };
      return await calls.convert('stat', { path }, ({ entry }) => onlyEntry(entry), options);
    },

    async listDir(path, { depth, max, after }, signal) {
      const options = { deadlineMs: DEADLINES.listDir, signal };
      return await calls.convert('listDir', { path, depth, max, after: after ?? NOTHING }, pageOf, options);
    },

    async makeDir(path, { uid, gid, mode }, signal) {
      return await calls.call('makeDir', { path, uid, gid, mode }, { deadlineMs: DEADLINES.makeDir, signal });
    },

    async rename(source, destination, { uid, gid }, signal) {
      const body = { source, destination, uid, gid };
      await calls.call('rename', body, { deadlineMs: DEADLINES.rename, signal });
    },

    async remove(path, signal) {
      return await calls.call('remove', { path }, { deadlineMs: DEADLINES.remove, signal });
    },

    async readFile(path, range, signal) {
      const download = createDownload(clock);
      const entry = Promise.withResolvers<GuestEntry>();
      const body = { path, offset: range?.offset ?? 0n, length: range?.length ?? TO_THE_END, flags: 0 };
      const call = calls.open('readFile', body, {
        deadlineMs: DEADLINES.readFile,
        deadlineIn: 'host',
        signal,
        stream: download.events,
        onResponse(response) {
          entry.resolve(onlyEntry(response.entry));
          download.start(call.stream, signal);
        },
      });
      await call.response;
      return { entry: await entry.promise, body: download.body };
    },

    async writeFile({ path, uid, gid, mode, xattrs }, body, signal) {
      const request = { path, uid, gid, mode, flags: 0, xattrs: xattrRows(xattrs) };
      return await upload(context, 'writeFile', request, body, signal);
    },

    async composeFile(sources, { path, uid, gid, mode }, signal) {
      const body = { sources, destination: path, uid, gid, mode };
      return await calls.call('composeFile', body, { deadlineMs: DEADLINES.composeFile, signal });
    },
  };
}
