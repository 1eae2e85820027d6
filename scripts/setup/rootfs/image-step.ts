import {
  chmod,
  chown,
  copyFile,
  cp,
  lstat,
  lutimes,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  symlink,
  truncate,
  writeFile,
} from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { sha256, sha256File, walk } from '../../lib/files.ts';
import type { SetupContext, SetupStep, StepResult, StepResults } from '../step.ts';
import { DATES_FILE } from './debian-step.ts';
import { FILES, GUEST_COMMANDS, GUEST_COPY, PRUNED, REMOVED } from './recipe.ts';

/** Raise it when the same inputs have to be made into a new image. */
const RECIPE = 2;
const BLOCK_BYTES = 4096;
const INODE_BYTES = 256;

/** The read-only ext4 image every sandbox made from `base` shares. */
export function imageStep(): SetupStep {
  return {
    name: 'rootfs',
    title: 'base root file system',
    rootBecause: 'to unpack the base image with the owners its files must have',
    key: async (context, earlier) =>
      sha256(
        JSON.stringify([
          RECIPE,
          FILES,
          REMOVED,
          PRUNED,
          GUEST_COPY,
          GUEST_COMMANDS,
          earlier.debian?.facts.packagesDigest,
          earlier.guest?.facts.guestDigest,
          await nodeVersions(context),
        ]),
      ),
    run: makeImage,
  };
}

async function nodeVersions(context: SetupContext): Promise<readonly string[]> {
  const versions = ['npm', nodePackage(context)].map(async (name) => {
    const manifest: unknown = JSON.parse(
      await readFile(join(context.paths.toolchain, 'node_modules', name, 'package.json'), 'utf8'),
    );
    if (typeof manifest !== 'object' || manifest === null || !('version' in manifest))
      throw new Error(`${name}: no version`);
    return `${name}@${manifest.version}`;
  });
  return Promise.all(versions);
}

function nodePackage(context: SetupContext): string {
  return `node-linux-${context.architecture === 'amd64' ? 'x64' : 'arm64'}`;
}

async function makeImage(context: SetupContext, earlier: StepResults): Promise<StepResult> {
  const debianFile = earlier.debian?.facts.debianFile;
  const guestFile = earlier.guest?.facts.guestFile;
  const guestDigest = earlier.guest?.facts.guestDigest;
  if (debianFile === undefined || guestFile === undefined || guestDigest === undefined) {
    throw new Error('the Debian tree and the guest agent come first');
  }
  const work = await context.scratch('rootfs');
  const tree = join(work, 'tree');
  await mkdir(tree);
  context.progress('unpacking');
  const archive = join(context.paths.artifacts, debianFile);
  await context.run('tar', [
    '-x',
    '-p',
    '--numeric-owner',
    '--xattrs',
    '--xattrs-include=*',
    '-f',
    archive,
    '-C',
    tree,
  ]);

  const packages = await context.run('dpkg-query', [`--admindir=${join(tree, 'var/lib/dpkg')}`, '-W']);
  const dates = (await readFile(join(tree, DATES_FILE), 'utf8')).trim().split('\n');
  const epoch = Math.max(...dates.map((date) => Date.parse(date))) / 1000;
  if (!Number.isFinite(epoch)) throw new Error('the package lists carry no date');
  await rm(join(tree, DATES_FILE));

  context.progress('adding Node.js, accounts and login files');
  for (const path of REMOVED) await rm(join(tree, path), { recursive: true, force: true });
  for (const { directory, keep } of PRUNED) await prune(tree, directory, keep);
  for (const file of FILES) {
    const path = join(tree, file.path);
    await mkdir(dirname(path), { recursive: true });
    await rm(path, { force: true });
    await writeFile(path, file.content);
    await chmod(path, file.mode);
    await chown(path, file.owner ?? 0, file.owner ?? 0);
  }
  await mkdir(join(tree, 'var/cache/debconf'), { recursive: true });
  await addGuest(join(context.paths.artifacts, guestFile), tree);
  await addNode(context, tree);

  const digest = sha256(
    JSON.stringify([RECIPE, FILES, REMOVED, PRUNED, packages, guestDigest, await nodeVersions(context)]),
  );
  const file = `base-${digest.slice(0, 16)}.ext4`;
  context.progress('writing the image');
  const image = join(work, file);
  await writeExt4(context, { tree, image, digest, epoch });
  const { size } = await lstat(image);
  const contentDigest = await sha256File(image);
  await chmod(image, 0o444);
  await rename(image, join(context.paths.artifacts, file));
  return {
    files: { [file]: size },
    facts: { rootfsFile: file, rootfsDigest: digest, rootfsContentDigest: contentDigest },
  };
}

/** Empties a directory but for what is kept; a last part `*` stands for every directory there. */
async function prune(tree: string, directory: string, keep: readonly string[]): Promise<void> {
  const parent = join(tree, directory.replace(/\/\*$/, ''));
  const each = directory.endsWith('/*')
    ? (await readdir(parent, { withFileTypes: true }))
        .filter((entry) => entry.isDirectory())
        .map(({ name }) => join(parent, name))
    : [parent];
  for (const path of each) {
    for (const name of await readdir(path)) {
      if (!keep.includes(name)) await rm(join(path, name), { recursive: true });
    }
  }
}

async function addGuest(guest: string, tree: string): Promise<void> {
  const copy = join(tree, GUEST_COPY);
  await mkdir(dirname(copy), { recursive: true });
  await copyFile(guest, copy);
  await chmod(copy, 0o755);
  for (const command of GUEST_COMMANDS) {
    await rm(join(tree, command), { force: true });
    await symlink(GUEST_COPY, join(tree, command));
  }
}

/** Node.js and npm as published, without headers. */
async function addNode(context: SetupContext, tree: string): Promise<void> {
  const modules = join(context.paths.toolchain, 'node_modules');
  const local = join(tree, 'usr/local');
  const npm = join(local, 'lib/node_modules/npm');
  await mkdir(dirname(npm), { recursive: true });
  await copyFile(join(modules, nodePackage(context), 'bin/node'), join(local, 'bin/node'));
  await chmod(join(local, 'bin/node'), 0o755);
  await cp(join(modules, 'npm'), npm, { recursive: true, verbatimSymlinks: true });
  await context.run('chown', ['-R', '0:0', local]);
  for (const name of ['npm', 'npx']) {
    await symlink(`../lib/node_modules/npm/bin/${name}-cli.js`, join(local, 'bin', name));
  }
}

/** One ext4 file without journal and almost without free space; the same tree gives the same layout and times. */
async function writeExt4(
  context: SetupContext,
  plan: { tree: string; image: string; digest: string; epoch: number },
): Promise<void> {
  const { blocks, inodes } = await clampTimes(plan.tree, plan.epoch);
  // Group descriptors, bitmaps, extent trees: about half a percent; the rest is given back by resize2fs.
  const total = Math.ceil((blocks + (inodes * INODE_BYTES) / BLOCK_BYTES) * 1.02) + 2048;
  const uuid = plan.digest.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12}).*$/, '$1-$2-$3-$4-$5');
  await truncate(await emptyFile(plan.image), total * BLOCK_BYTES);
  const env = { ...context.env, E2FSPROGS_FAKE_TIME: String(plan.epoch), SOURCE_DATE_EPOCH: String(plan.epoch) };
  const options = { env, timeoutMs: 600_000 };
  const features = '^has_journal,^resize_inode,^metadata_csum,^64bit,^orphan_file';
  await context.run(
    'mke2fs',
    [
      '-q',
      '-F',
      '-t',
      'ext4',
      '-b',
      String(BLOCK_BYTES),
      '-I',
      String(INODE_BYTES),
      '-N',
      String(inodes + 64),
      '-m',
      '0',
      '-O',
      features,
      '-L',
      'aenv-base',
      '-U',
      uuid,
      '-E',
      `hash_seed=${uuid},root_owner=0:0,lazy_itable_init=0`,
      '-d',
      plan.tree,
      plan.image,
    ],
    options,
  );
  await context.run('resize2fs', ['-M', plan.image], options);
  await clampChangeTimes(context, plan.image, plan.epoch, options);
  await context.run('e2fsck', ['-f', '-n', plan.image], options);
}

/** Change times cannot be set on the tree, so they are set in the image: all of them, which makes it reproducible. */
async function clampChangeTimes(
  context: SetupContext,
  image: string,
  epoch: number,
  options: { readonly env: NodeJS.ProcessEnv; readonly timeoutMs: number },
): Promise<void> {
  const header = await context.run('dumpe2fs', ['-h', image], options);
  const count = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+)$`, 'm').exec(header)?.[1]);
  const used = count('Inode count') - count('Free inodes');
  if (!Number.isInteger(used)) throw new Error('dumpe2fs does not say how many inodes are used');
  const commands = Array.from({ length: used }, (_, index) =>
    [`sif <${index + 1}> ctime @${epoch}`, `sif <${index + 1}> ctime_extra 0`].join('\n'),
  );
  const script = `${image}.debugfs`;
  await writeFile(script, `${commands.join('\n')}\n`);
  await context.run('debugfs', ['-w', '-f', script, image], { ...options, onOutput: () => {} });
}

async function emptyFile(path: string): Promise<string> {
  await writeFile(path, '');
  return path;
}

/** Sets times later than `epoch` (seconds) to it, so that a build leaves no trace of when it ran; counts what an image needs. */
async function clampTimes(root: string, epoch: number): Promise<{ blocks: number; inodes: number }> {
  let blocks = 0;
  let inodes = 0;
  const paths = [root];
  for await (const { path } of walk(root)) paths.push(path);
  for (const path of paths) {
    const status = await lstat(path);
    inodes += 1;
    blocks += status.isSymbolicLink() ? 0 : Math.ceil(status.size / BLOCK_BYTES);
    const modified = Math.min(Math.floor(status.mtimeMs / 1000), epoch);
    await lutimes(path, modified, modified);
  }
  return { blocks, inodes };
}
