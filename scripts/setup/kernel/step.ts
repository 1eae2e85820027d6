import { mkdir, readdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { sha256, walk } from '../../lib/files.ts';
import { parseDepends } from '../apt/depends.ts';
import { aptOptions } from '../apt/lists.ts';
import { type CpioEntry, cpioArchive, S_IFDIR, S_IFLNK, S_IFREG } from '../cpio.ts';
import type { SetupContext, SetupStep, StepResult } from '../step.ts';
import { BOOT_MODULES, EXTRA_MODULES, loadOrder, parseModuleTable } from './modules.ts';
import { assertVmlinux, findKernelPayload } from './vmlinux.ts';

/** Raise it when the same kernel package has to be prepared anew. */
const RECIPE = 1;
/** The modules' archive is the second part of the initial root; its inode numbers start here. */
const FIRST_MODULE_INODE = 10_000;

/**
 * Debian's cloud kernel for the guest, taken apart and never installed on this machine: the uncompressed ELF image (it
 * boots without unpacking itself) and an archive with the modules a guest loads or may ask for.
 */
export function kernelStep(): SetupStep {
  return {
    name: 'kernel',
    title: 'guest kernel',
    key: async (context) => sha256(JSON.stringify([RECIPE, metaPackage(context), BOOT_MODULES, EXTRA_MODULES])),
    run: prepareKernel,
  };
}

function metaPackage(context: SetupContext): string {
  return `linux-image-cloud-${context.architecture}`;
}

async function prepareKernel(context: SetupContext): Promise<StepResult> {
  const work = await context.scratch('kernel');
  const apt = await aptOptions(context, metaPackage(context));
  const imagePackage = parseDepends(await context.run('apt-cache', [...apt, 'depends', metaPackage(context)])).find(
    (name) => name.startsWith('linux-image-'),
  );
  if (imagePackage === undefined) throw new Error(`${metaPackage(context)} depends on no kernel image`);
  context.progress(`downloading ${imagePackage}`);
  await context.run('apt-get', [...apt, 'download', imagePackage], { cwd: work, timeoutMs: 600_000 });
  const archive = (await readdir(work)).find((name) => name.endsWith('.deb'));
  if (archive === undefined) throw new Error(`apt-get download ${imagePackage} left no file`);
  const tree = join(work, 'tree');
  await context.run('dpkg-deb', ['-x', join(work, archive), tree]);
  const modulesRoot = (await existing(join(tree, 'lib/modules'))) ?? join(tree, 'usr/lib/modules');
  const version = (await readdir(modulesRoot))[0];
  if (version === undefined) throw new Error(`${imagePackage} holds no modules`);

  context.progress(`extracting vmlinux ${version}`);
  const image = await readFile(join(tree, 'boot', `vmlinuz-${version}`));
  const payload = findKernelPayload(image);
  const [decompressor, ...args] = payload.command;
  const vmlinux = join(work, 'vmlinux');
  await context.run(decompressor, args, { input: payload.data, stdoutFile: vmlinux });
  const kernel = await readFile(vmlinux);
  assertVmlinux(kernel, payload.uncompressedBytes);

  context.progress('selecting modules');
  const modules = await moduleArchive(context, { tree, modulesRoot, version, work });

  const kernelDigest = sha256(kernel);
  const modulesDigest = sha256(modules);
  const kernelFile = `vmlinux-${version}-${kernelDigest.slice(0, 16)}`;
  const modulesFile = `modules-${version}-${modulesDigest.slice(0, 16)}.cpio`;
  await rename(vmlinux, join(context.paths.artifacts, kernelFile));
  await writeFile(join(work, modulesFile), modules, { flush: true });
  await rename(join(work, modulesFile), join(context.paths.artifacts, modulesFile));
  return {
    files: { [kernelFile]: kernel.length, [modulesFile]: modules.length },
    facts: { version, package: archive.replace(/\.deb$/, ''), kernelFile, kernelDigest, modulesFile, modulesDigest },
  };
}

async function existing(path: string): Promise<string | undefined> {
  return stat(path).then(
    () => path,
    () => undefined,
  );
}

/** `/lib/modules/VERSION` with the chosen modules uncompressed and depmod's indexes, and `/modules/order` for init. */
async function moduleArchive(
  context: SetupContext,
  kernel: { tree: string; modulesRoot: string; version: string; work: string },
): Promise<Buffer> {
  const source = join(kernel.modulesRoot, kernel.version);
  await context.run('depmod', ['-b', dirname(dirname(kernel.modulesRoot)), kernel.version]);
  const table = parseModuleTable(
    await readFile(join(source, 'modules.dep'), 'utf8'),
    await readFile(join(source, 'modules.builtin'), 'utf8'),
  );
  const boot = loadOrder(BOOT_MODULES, table);
  if (boot.missing.length > 0) throw new Error(`kernel ${kernel.version} has no module ${boot.missing.join(', ')}`);
  const chosen = loadOrder([...BOOT_MODULES, ...EXTRA_MODULES], table);

  const root = join(kernel.work, 'modules');
  const target = join(root, 'lib/modules', kernel.version);
  for (const path of chosen.paths) {
    const file = join(target, path);
    await mkdir(dirname(file), { recursive: true });
    await rename(join(source, path), file);
    if (path.endsWith('.xz')) await context.run('xz', ['-d', file]);
  }
  for (const name of ['modules.order', 'modules.builtin', 'modules.builtin.modinfo']) {
    await rename(join(source, name), join(target, name));
  }
  await context.run('depmod', ['-b', root, kernel.version]);

  const entries = await treeEntries(root);
  entries.push({ path: 'modules', mode: S_IFDIR | 0o755 });
  const order = boot.paths.map((path) => path.replace(/\.xz$/, ''));
  for (const path of order) {
    const data = Buffer.from(`/lib/modules/${kernel.version}/${path}`);
    entries.push({ path: `modules/${basename(path)}`, mode: S_IFLNK | 0o777, data });
  }
  const names = order.map((path) => `${basename(path)}\n`).join('');
  entries.push({ path: 'modules/order', mode: S_IFREG | 0o644, data: Buffer.from(names) });
  return cpioArchive(entries, FIRST_MODULE_INODE);
}

async function treeEntries(root: string): Promise<CpioEntry[]> {
  const entries: CpioEntry[] = [];
  for await (const { path, entry } of walk(root)) {
    const name = path.slice(root.length + 1);
    if (entry.isDirectory()) entries.push({ path: name, mode: S_IFDIR | 0o755 });
    else entries.push({ path: name, mode: S_IFREG | 0o644, data: await readFile(path) });
  }
  return entries;
}
