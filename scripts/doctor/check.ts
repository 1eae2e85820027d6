/** `missing` fails the diagnosis; `warning` works with a limit. */
export type CheckState = 'ok' | 'warning' | 'missing';

/** One prerequisite as found on this host. */
export interface CheckResult {
  readonly name: string;
  readonly state: CheckState;
  /** What was found, or why it does not do. */
  readonly detail: string;
  /** What the operator can do; absent when all is well. */
  readonly remedy?: string;
}

/** The diagnosis as text: one line a check, the remedy below it. */
export function formatChecks(results: readonly CheckResult[]): string {
  const width = Math.max(...results.map(({ name }) => name.length));
  return results
    .flatMap(({ name, state, detail, remedy }) => {
      const line = `${state.padEnd(8)} ${name.padEnd(width)}  ${detail}`;
      return remedy === undefined ? [line] : [line, `${' '.repeat(8 + 1 + width)}  -> ${remedy}`];
    })
    .join('\n');
}

/** Exit code of a diagnosis: 1 when something required is missing. */
export function exitCodeOf(results: readonly CheckResult[]): number {
  return results.some(({ state }) => state === 'missing') ? 1 : 0;
}
