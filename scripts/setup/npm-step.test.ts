import { describe, expect, it } from 'vitest';
import { isInstalled, type Lockfile } from './npm-step.ts';

const wanted: Lockfile = {
  packages: {
    '': { version: '1.0.0' },
    'node_modules/a': { version: '1.2.3', integrity: 'sha512-a' },
    'node_modules/other-platform': { version: '1.0.0', integrity: 'sha512-o', optional: true },
    'node_modules/@x/workspace': { link: true },
  },
};
const complete = {
  'node_modules/a': { version: '1.2.3', integrity: 'sha512-a' },
  'node_modules/@x/workspace': { link: true },
};

describe('isInstalled', () => {
  it('accepts what npm ci leaves, without packages of other platforms', () => {
    expect(isInstalled(wanted, { packages: complete })).toBe(true);
  });

  it.each([
    ['a missing package', { 'node_modules/@x/workspace': { link: true } }],
    ['another version', { ...complete, 'node_modules/a': { version: '1.2.4', integrity: 'sha512-a' } }],
    ['other contents', { ...complete, 'node_modules/a': { version: '1.2.3', integrity: 'sha512-b' } }],
    ['a copy instead of the workspace', { ...complete, 'node_modules/@x/workspace': { version: '1.0.0' } }],
    [
      'another version of an optional package',
      { ...complete, 'node_modules/other-platform': { version: '2.0.0', integrity: 'sha512-o' } },
    ],
  ])('refuses %s', (_what, packages) => {
    expect(isInstalled(wanted, { packages })).toBe(false);
  });
});
