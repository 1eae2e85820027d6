/** Names in the `Depends:` lines of `apt-cache depends PACKAGE`; alternatives and versions are not told apart there. */
export function parseDepends(output: string): readonly string[] {
  return [...output.matchAll(/^\s*\|?Depends:\s*(\S+)\s*$/gm)].map(([, name]) => name ?? '');
}

/** One package index of this machine's apt sources. */
export interface PackageSource {
  /** As configured, without a trailing slash. */
  readonly uri: string;
  readonly codename: string;
  /** Who signed and published it: `Debian`, or somebody else. */
  readonly origin: string;
  readonly label: string;
  readonly component: string;
}

/** The format `parseSources` reads; `apt-get indextargets` fills it in from the sources and their signed Release files. */
export const SOURCE_FORMAT = '$(REPO_URI)|$(CODENAME)|$(ORIGIN)|$(LABEL)|$(COMPONENT)';

/** Reads `apt-get indextargets --format SOURCE_FORMAT`. */
export function parseSources(output: string): readonly PackageSource[] {
  return output
    .split('\n')
    .map((line) => line.split('|'))
    .filter((fields) => fields.length === 5)
    .map(([uri = '', codename = '', origin = '', label = '', component = '']) => ({
      uri: uri.replace(/\/$/, ''),
      codename,
      origin,
      label,
      component,
    }));
}

/**
 * Source lines for `release` from the places where this machine gets Debian's own packages: third-party sources are
 * left out, and a machine of another Debian release uses its mirrors with `release`. Empty when it has no Debian source.
 */
export function debianSourceLines(sources: readonly PackageSource[], release: string): readonly string[] {
  const keyring = '[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]';
  const usable = sources.filter((source) => source.origin === 'Debian' && /^(https?|file|copy):/.test(source.uri));
  const archive = usable.find((source) => source.label === 'Debian');
  if (archive === undefined) return [];
  const security = usable.find((source) => source.label === 'Debian-Security');
  return [
    `deb ${keyring} ${archive.uri} ${release} main`,
    `deb ${keyring} ${archive.uri} ${release}-updates main`,
    ...(security === undefined ? [] : [`deb ${keyring} ${security.uri} ${release}-security main`]),
  ];
}
