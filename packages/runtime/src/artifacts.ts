import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@agentenv/core';
import type { RootFilesystem } from './backend.ts';

/** A file set-up made, named by what is in it. */
export interface Artifact {
  /** Absolute path. */
  readonly path: string;
  /** sha256 of the contents, hexadecimal. */
  readonly digest: string;
  readonly bytes: number;
}

export interface KernelArtifact extends Artifact {
  /** The kernel's own release name, e.g. `6.1.0-57-cloud-amd64`; part of a snapshot's fingerprint. */
  readonly version: string;
}

export interface RootFilesystemArtifact extends RootFilesystem {
  readonly bytes: number;
  /** sha256 of the image file itself (`digest` covers what it was built from). */
  readonly contentDigest: string;
}

/** Everything set-up prepares for the engines on this host. */
export interface HostArtifacts {
  /** Uncompressed ELF kernel with a PVH entry. */
  readonly kernel: KernelArtifact;
  /** Initial root of every microVM: the guest agent as `/init` and the kernel's modules. */
  readonly initramfs: Artifact;
  /** The static guest agent, for engines that share the host's kernel. */
  readonly guest: Artifact;
  /** The program that starts an engine with the slot's uid, namespaces and limits. */
  readonly launcher: Artifact;
  /** Read-only images by template name; `base` is always there. */
  readonly rootfs: Readonly<Record<string, RootFilesystemArtifact>> & { readonly base: RootFilesystemArtifact };
}

const INDEX_FILE = 'artifacts.json';
const FORMAT = 1;

type Fields = Readonly<Record<string, unknown>>;

/**
 * Reads `artifacts.json` of the directory that set-up fills (configuration key `deps_path`) and checks that every file it
 * names is there in full. Throws `unavailable` with the reason and the remedy, `./aenv setup`.
 */
export async function loadArtifacts(directory: string): Promise<HostArtifacts> {
  const index = await readIndex(directory);
  const kernel = fieldsOf(index.kernel, 'kernel');
  const rootfs = fieldsOf(index.rootfs, 'rootfs');
  const images = await Promise.all(
    Object.entries(rootfs).map(
      async ([name, value]) => [name, await imageOf(directory, value, `rootfs.${name}`)] as const,
    ),
  );
  const base = images.find(([name]) => name === 'base')?.[1];
  if (base === undefined) throw broken('rootfs.base is missing');
  return {
    kernel: { ...(await artifactOf(directory, kernel, 'kernel')), version: textOf(kernel, 'version', 'kernel') },
    initramfs: await artifactOf(directory, index.initramfs, 'initramfs'),
    guest: await artifactOf(directory, index.guest, 'guest'),
    launcher: await artifactOf(directory, index.launcher, 'launcher'),
    rootfs: { ...Object.fromEntries(images), base },
  };
}

async function readIndex(directory: string): Promise<Fields> {
  const path = join(directory, INDEX_FILE);
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (caught) {
    throw new PlatformError('unavailable', `no ${INDEX_FILE} in ${directory}: run ./aenv setup`, { cause: caught });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (caught) {
    throw broken('it is not JSON', caught);
  }
  const index = fieldsOf(value, 'index');
  if (index.format !== FORMAT) throw broken(`format ${String(index.format)}, this version reads ${FORMAT}`);
  return index;
}

async function artifactOf(directory: string, value: unknown, name: string): Promise<Artifact> {
  const fields = fieldsOf(value, name);
  const path = join(directory, textOf(fields, 'file', name));
  const bytes = fields.bytes;
  if (typeof bytes !== 'number') throw broken(`${name}.bytes is not a number`);
  const size = await stat(path).then(
    (status) => status.size,
    () => undefined,
  );
  if (size === undefined) throw broken(`${path} (${name}) is missing`);
  if (size !== bytes) throw broken(`${path} (${name}) has ${size} bytes instead of ${bytes}`);
  return { path, digest: textOf(fields, 'digest', name), bytes };
}

async function imageOf(directory: string, value: unknown, name: string): Promise<RootFilesystemArtifact> {
  const artifact = await artifactOf(directory, value, name);
  return { ...artifact, contentDigest: textOf(fieldsOf(value, name), 'contentDigest', name) };
}

function fieldsOf(value: unknown, name: string): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw broken(`${name} is missing`);
  return Object.fromEntries(Object.entries(value));
}

function textOf(fields: Fields, key: string, name: string): string {
  const value = fields[key];
  if (typeof value !== 'string' || value === '') throw broken(`${name}.${key} is missing`);
  return value;
}

function broken(what: string, cause?: unknown): PlatformError {
  return new PlatformError('unavailable', `${INDEX_FILE}: ${what}: run ./aenv setup`, { cause });
}
