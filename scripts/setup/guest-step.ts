import { chmod, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { sha256, sha256Tree, writeFileAtomically } from '../lib/files.ts';
import { type CpioEntry, cpioArchive, S_IFCHR, S_IFDIR, S_IFREG } from './cpio.ts';
import type { SetupContext, SetupStep, StepResult, StepResults } from './step.ts';

const GUEST_RECIPE = 1;
const INITRAMFS_RECIPE = 1;

/** The static guest agent and the engine launcher, compiled from `guest/`. */
export function guestStep(): SetupStep {
  return {
    name: 'guest',
    title: 'guest agent',
    key: async (context) => {
      const sources = await sha256Tree(join(context.paths.root, 'guest'), (path) =>
        /^(src\/.*\.[ch]|launch\.c|Makefile)$/.test(path),
      );
      return sha256(JSON.stringify([GUEST_RECIPE, sources]));
    },
    run: compile,
  };
}

async function compile(context: SetupContext): Promise<StepResult> {
  const work = await context.scratch('guest');
  await context.run('make', ['-C', join(context.paths.root, 'guest'), `OUT=${work}`], { timeoutMs: 300_000 });
  const files: Record<string, number> = {};
  const facts: Record<string, string> = {};
  for (const [role, program] of [
    ['guest', 'aenv-guest'],
    ['launcher', 'aenv-launch'],
  ] as const) {
    const binary = await readFile(join(work, program));
    const digest = sha256(binary);
    const file = `${program}-${digest.slice(0, 16)}`;
    await chmod(join(work, program), 0o755);
    await rename(join(work, program), join(context.paths.artifacts, file));
    files[file] = binary.length;
    facts[`${role}File`] = file;
    facts[`${role}Digest`] = digest;
  }
  return { files, facts };
}

/** The initial root of every microVM: the agent as `/init`, its mount points, the kernel's modules. */
export function initramfsStep(): SetupStep {
  return {
    name: 'initramfs',
    title: 'initial root',
    key: async (_context, earlier) =>
      sha256(JSON.stringify([INITRAMFS_RECIPE, earlier.guest?.facts.guestDigest, earlier.kernel?.facts.modulesDigest])),
    run: packInitramfs,
  };
}

async function packInitramfs(context: SetupContext, earlier: StepResults): Promise<StepResult> {
  const guestFile = earlier.guest?.facts.guestFile;
  const modulesFile = earlier.kernel?.facts.modulesFile;
  if (guestFile === undefined || modulesFile === undefined)
    throw new Error('the guest agent and the kernel come first');
  const directories = ['dev', 'proc', 'sys', 'run', 'tmp', 'mnt'];
  const entries: CpioEntry[] = directories.map((path) => ({ path, mode: S_IFDIR | 0o755 }));
  entries.push(
    { path: 'dev/console', mode: S_IFCHR | 0o600, device: [5, 1] },
    { path: 'dev/null', mode: S_IFCHR | 0o666, device: [1, 3] },
    { path: 'init', mode: S_IFREG | 0o755, data: await readFile(join(context.paths.artifacts, guestFile)) },
  );
  const archive = Buffer.concat([cpioArchive(entries), await readFile(join(context.paths.artifacts, modulesFile))]);
  const digest = sha256(archive);
  const file = `initramfs-${digest.slice(0, 16)}.cpio`;
  await writeFileAtomically(join(context.paths.artifacts, file), archive);
  return { files: { [file]: archive.length }, facts: { initramfsFile: file, initramfsDigest: digest } };
}
