import { describe, expect, it } from 'vitest';
import { type HostSnapshot, leaksBetween, mountPoints, ourSockets } from './leaks.ts';
import { failuresIn, mergeReports, type TestReport } from './report.ts';
import { parseTestArguments, testStage } from './stages.ts';

function report(overrides: Partial<TestReport>): TestReport {
  return {
    numTotalTestSuites: 1,
    numPassedTestSuites: 1,
    numFailedTestSuites: 0,
    numPendingTestSuites: 0,
    numTotalTests: 2,
    numPassedTests: 2,
    numFailedTests: 0,
    numPendingTests: 0,
    numTodoTests: 0,
    startTime: 10,
    success: true,
    testResults: [{ name: 'x.test.ts', status: 'passed', assertionResults: [{ status: 'passed' }] }],
    ...overrides,
  };
}

describe('the report over several runs', () => {
  it('adds counts, keeps every file and the earliest start, and succeeds only as a whole', () => {
    const merged = mergeReports([
      report({}),
      report({ numTotalTests: 3, numFailedTests: 1, startTime: 5, success: false }),
    ]);
    expect(merged).toMatchObject({
      numTotalTests: 5,
      numPassedTests: 4,
      numFailedTests: 1,
      startTime: 5,
      success: false,
    });
    expect(merged.testResults).toHaveLength(2);
  });

  it('counts a file that failed without a failed test once, and one with failed tests by these', () => {
    const failed = { name: 'a', status: 'failed' };
    expect(failuresIn(report({ testResults: [{ ...failed, assertionResults: [] }] }))).toBe(1);
    const withTest = { ...failed, assertionResults: [{ status: 'failed' }, { status: 'passed' }] };
    expect(failuresIn(report({ numFailedTests: 1, testResults: [withTest] }))).toBe(1);
    expect(failuresIn(report({}))).toBe(0);
  });
});

describe('arguments of ./aenv test', () => {
  it('name projects and filters', () => {
    expect(parseTestArguments([])).toEqual({ projects: ['unit', 'integration', 'vm', 'e2e'], filters: [] });
    expect(parseTestArguments(['--project', 'vm', 'e2e/', '--project=unit', '-t', 'kills'])).toEqual({
      projects: ['vm', 'unit'],
      filters: ['e2e/', '-t', 'kills'],
    });
  });

  it.each([['--project'], ['--project', 'nonsense'], ['--project=']])(
    'refuse a project nobody knows: %s %s',
    (...args) => {
      expect(() => parseTestArguments(args.filter((arg) => arg !== undefined))).toThrow('--project takes one of');
    },
  );

  it('reach vitest behind its own options', () => {
    const { args } = testStage('unit', ['packages/core', '-t', 'x'], '/r/unit.json');
    expect(args.slice(-3)).toEqual(['packages/core', '-t', 'x']);
    expect(args).toContain('--outputFile.json=/r/unit.json');
  });
});

describe('leaks', () => {
  const nothing: HostSnapshot = {
    process: new Set(),
    mount: new Set(['/']),
    'network namespace': new Set(),
    'network link': new Set(['lo']),
    'nft table': new Set(),
    cgroup: new Set(),
    socket: new Set(),
    'loop device': new Set(),
    device: new Set(['/dev/null 20666 0:0 259']),
    file: new Set(['/tmp/aenv-old']),
  };

  it('are what is new, named by kind', () => {
    const after: HostSnapshot = { ...nothing, mount: new Set(['/', '/mnt/x']), file: new Set() };
    expect(leaksBetween(nothing, nothing)).toEqual([]);
    expect(leaksBetween(nothing, after)).toEqual(['mount: /mnt/x']);
  });

  it('are read from the tables of the kernel', () => {
    expect(mountPoints('21 1 254:0 / / rw - ext4 /dev/vda rw\n22 21 0:5 / /proc rw - proc proc rw\n')).toEqual([
      '/',
      '/proc',
    ]);
    const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000002 00000000 00010000 0001 01 17 /run/aenv/x/qmp.sock
0000: 00000003 00000000 00000000 0001 03 18
0000: 00000002 00000000 00010000 0001 01 19 /run/dbus
`;
    expect(ourSockets(table)).toEqual(['/run/aenv/x/qmp.sock']);
  });
});
