import { describe, expect, it } from 'vitest';
import { debianSourceLines, type PackageSource, parseDepends, parseSources } from './depends.ts';

describe('parseDepends', () => {
  it('reads the kernel a meta package depends on', () => {
    const output = 'linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n';
    expect(parseDepends(output)).toEqual(['linux-image-6.1.0-57-cloud-amd64']);
  });

  it('takes alternatives and ignores other relations', () => {
    const output = 'x\n |Depends: a\n  Depends: <b:any>\n  PreDepends: c\n  Recommends: d\n  Depends: e\n    f\n';
    expect(parseDepends(output)).toEqual(['a', '<b:any>', 'e']);
  });
});

describe('debianSourceLines', () => {
  const debian = (label: string, uri: string, codename = 'bookworm'): PackageSource => {
    return { uri, codename, origin: 'Debian', label, component: 'main' };
  };

  it('reads what apt-get indextargets prints', () => {
    const output =
      'http://mirror.example/debian/|trixie|Debian|Debian|main\nhttp://vendor.example/|stable|Vendor|X|main\n';
    expect(parseSources(output)).toEqual([
      debian('Debian', 'http://mirror.example/debian', 'trixie'),
      { uri: 'http://vendor.example', codename: 'stable', origin: 'Vendor', label: 'X', component: 'main' },
    ]);
  });

  it('uses only the places Debian itself signs, with the wanted release', () => {
    const vendor = { ...debian('Debian', 'http://vendor.example'), origin: 'Vendor' };
    const lines = debianSourceLines(
      [
        vendor,
        debian('Debian', 'http://mirror.example/debian', 'trixie'),
        debian('Debian-Security', 'http://mirror.example/security'),
      ],
      'bookworm',
    );
    expect(lines.map((line) => line.replace(/\[.*\] /, ''))).toEqual([
      'deb http://mirror.example/debian bookworm main',
      'deb http://mirror.example/debian bookworm-updates main',
      'deb http://mirror.example/security bookworm-security main',
    ]);
    expect(lines.every((line) => line.includes('signed-by='))).toBe(true);
  });

  it('goes without security updates only when the machine has no source for them', () => {
    expect(debianSourceLines([debian('Debian', 'https://mirror.example')], 'bookworm')).toHaveLength(2);
  });

  it('is empty without a Debian source a chroot can reach', () => {
    expect(debianSourceLines([debian('Debian', 'cdrom:[Debian]')], 'bookworm')).toEqual([]);
    expect(debianSourceLines([], 'bookworm')).toEqual([]);
  });
});
