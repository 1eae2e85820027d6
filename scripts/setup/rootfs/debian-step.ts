import { lstat, rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { checkNullDevice } from '../../doctor/null-device.ts';
import { sha256 } from '../../lib/files.ts';
import { debianSourceLines, parseSources, SOURCE_FORMAT } from '../apt/depends.ts';
import { aptOptions } from '../apt/lists.ts';
import type { SetupContext, SetupStep, StepResult } from '../step.ts';
import { DPKG_OPTIONS, PACKAGES, RELEASE, USER } from './recipe.ts';

/** Raise it when the same packages have to be installed anew. */
const RECIPE = 2;
/** Name in the image, removed when the image is made: the dates of the package lists it was built from. */
export const DATES_FILE = 'aenv-package-list-dates';

/** A Debian tree with the base image's packages and user, as a tar file: the slow part of the base image. */
export function debianStep(): SetupStep {
  return {
    name: 'debian',
    title: 'Debian tree of the base image',
    apart: true,
    rootBecause: 'to install Debian packages into a separate directory tree (chroot)',
    key: async (context) =>
      sha256(JSON.stringify([RECIPE, context.architecture, RELEASE, PACKAGES, DPKG_OPTIONS, USER])),
    run: bootstrap,
  };
}

async function bootstrap(context: SetupContext): Promise<StepResult> {
  const work = await context.scratch('debian');
  const apt = await aptOptions(context, 'base-files');
  const targets = await context.run('apt-get', [
    ...apt,
    'indextargets',
    '--format',
    SOURCE_FORMAT,
    'Created-By: Packages',
  ]);
  const sources = debianSourceLines(parseSources(targets), RELEASE);
  if (sources.length === 0) {
    throw new Error(
      "the base image is made from Debian's packages, and this machine's apt sources offer none of Debian's own",
    );
  }
  const nullDevice = checkNullDevice(await lstat('/dev/null'));
  if (nullDevice.remedy !== undefined) throw new Error(`/dev/null: ${nullDevice.detail}; ${nullDevice.remedy}`);
  context.progress(`installing ${PACKAGES.length} packages and what they need: a minute or two`);
  const dates = `sed -n 's/^Date: *//p' "$1"/var/lib/apt/lists/*Release > "$1/${DATES_FILE}"`;
  const archive = join(work, 'debian.tar');
  const mmdebstrap = [
    'mmdebstrap',
    '--mode=root',
    '--variant=minbase',
    '--format=tar',
    `--architectures=${context.architecture}`,
    `--include=${PACKAGES.join(',')}`,
    ...DPKG_OPTIONS.map((option) => `--dpkgopt=${option}`),
    ...(await proxyOptions(context)),
    `--customize-hook=chroot "$1" useradd --create-home --uid ${USER.uid} --user-group --shell /bin/bash ${USER.name}`,
    `--customize-hook=${dates}`,
    RELEASE,
    archive,
    '-',
  ];
  // Its mounts and processes end with these namespaces, however the build ends.
  const isolation = ['--mount', '--propagation', 'private', '--pid', '--fork', '--kill-child', '--mount-proc'];
  await context.run('unshare', [...isolation, '--', ...mmdebstrap], {
    env: { ...context.env, TMPDIR: work, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C.UTF-8' },
    input: Buffer.from(sources.map((line) => `${line}\n`).join('')),
    timeoutMs: 1_800_000,
  });
  // Two trees with the same packages are the same tree; the image is made anew only for others.
  const packages = await context.run('tar', ['-x', '-O', '-f', archive, './var/lib/dpkg/status']);
  const file = `debian-${RELEASE}.tar`;
  await rename(archive, join(context.paths.artifacts, file));
  const { size } = await stat(join(context.paths.artifacts, file));
  return { files: { [file]: size }, facts: { debianFile: file, packagesDigest: sha256(packages) } };
}

/** mmdebstrap does not read this machine's apt configuration; the proxies in it are needed there too. */
async function proxyOptions(context: SetupContext): Promise<string[]> {
  const dump = await context.run('apt-config', ['dump', '--format', '%f "%v";%n', 'Acquire']);
  return dump
    .split('\n')
    .filter((line) => /^Acquire::https?::(proxy|[^:"]+::proxy)(::\S+)? ".+";$/i.test(line))
    .map((line) => `--aptopt=${line}`);
}
