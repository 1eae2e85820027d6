/** The parts of vitest's JSON report that are added up here; everything else is carried along. */
export interface TestReport {
  readonly numTotalTestSuites: number;
  readonly numPassedTestSuites: number;
  readonly numFailedTestSuites: number;
  readonly numPendingTestSuites: number;
  readonly numTotalTests: number;
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
  readonly numTodoTests: number;
  readonly startTime: number;
  readonly success: boolean;
  readonly testResults: readonly TestFileResult[];
}

export interface TestFileResult {
  readonly name: string;
  readonly status: string;
  readonly assertionResults: readonly { readonly status: string }[];
}

const COUNTS = [
  'numTotalTestSuites',
  'numPassedTestSuites',
  'numFailedTestSuites',
  'numPendingTestSuites',
  'numTotalTests',
  'numPassedTests',
  'numFailedTests',
  'numPendingTests',
  'numTodoTests',
] as const;

/** One report over several vitest runs. Throws on an empty list. */
export function mergeReports(reports: readonly TestReport[]): TestReport {
  const [first] = reports;
  if (first === undefined) throw new Error('there is no report to merge');
  const sums = Object.fromEntries(COUNTS.map((key) => [key, reports.reduce((sum, report) => sum + report[key], 0)]));
  return {
    ...first,
    ...sums,
    startTime: Math.min(...reports.map(({ startTime }) => startTime)),
    success: reports.every(({ success }) => success),
    testResults: reports.flatMap(({ testResults }) => testResults),
  };
}

/** Failures of a report: failed tests, and files that failed without one (they do not load, or a hook failed). */
export function failuresIn(report: TestReport): number {
  const failedFiles = report.testResults.filter(
    ({ status, assertionResults }) => status === 'failed' && !assertionResults.some((test) => test.status === 'failed'),
  );
  return report.numFailedTests + failedFiles.length;
}
