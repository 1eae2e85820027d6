import type { IncomingMessage, ServerResponse } from 'node:http';
import { basename } from 'node:path/posix';
import { PlatformError } from '@agentenv/core';
import { sendJson } from '../http/answer.ts';
import { readJsonObject } from '../http/json-body.ts';
import { signalOfAnswer, withDeadline } from '../http/signals.ts';
import { lookupFileUser } from './file-user.ts';
import { type FilesContext, GUEST_CALL_MS } from './files-context.ts';
import { resolveGuestPath } from './guest-path.ts';
import { writeError } from './write-error.ts';

const BODY_IDLE_MS = 60_000;
/** The umask takes the group's and the others' write bits away. */
const FILE_MODE = 0o666;
const MAX_SOURCES = 10_000;

/** `POST /files/compose`: joins files into one, in order, and removes them (contract e2b.md section 8). */
export async function composeFiles(
  request: IncomingMessage,
  response: ServerResponse,
  context: FilesContext,
): Promise<void> {
  const { agent, clock, defaultWorkdir } = context;
  const signal = signalOfAnswer(response);
  const body = await readJsonObject(request, { clock, idleMs: BODY_IDLE_MS });
  const { source_paths: sources, destination, username = context.defaultUser } = body;
  if (!isStrings(sources) || sources.length === 0 || sources.length > MAX_SOURCES) {
    throw new PlatformError('invalid_argument', `source_paths must be a list of 1 to ${MAX_SOURCES} paths`);
  }
  if (typeof destination !== 'string' || destination === '') {
    throw new PlatformError('invalid_argument', 'destination must be a path');
  }
  if (typeof username !== 'string') throw new PlatformError('invalid_argument', 'username must be a string');

  const user = await withDeadline(clock, GUEST_CALL_MS, signal, (bounded) => lookupFileUser(agent, username, bounded));
  const resolve = (path: string): string => resolveGuestPath(path, { home: user.home, defaultWorkdir });
  const paths = sources.map(resolve);
  const path = resolve(destination);
  await agent
    .composeFile(paths, { path, uid: user.uid, gid: user.gid, mode: FILE_MODE }, signal)
    .catch((caught: unknown) => {
      // The guest tells the path it failed at, which may be one of the sources.
      const { message } = PlatformError.fromUnknown(caught);
      throw writeError(caught, paths.includes(message) ? message : path);
    });
  sendJson(response, 200, { name: basename(path), path, type: 'file' });
}

function isStrings(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'string');
}
