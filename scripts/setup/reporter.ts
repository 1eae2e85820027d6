import type { SetupReporter } from './runner.ts';
import type { SetupStep } from './step.ts';

/** Where progress goes; `columns` is undefined when it is not a terminal. */
export interface ProgressOutput {
  write(text: string): void;
  readonly columns: number | undefined;
}

export interface ConsoleReporter extends SetupReporter {
  /** What the running step is doing. */
  progress(text: string): void;
}

/** Progress as plain lines; on a terminal what a step is doing replaces itself on one line. */
export function createConsoleReporter(output: ProgressOutput, now: () => number): ConsoleReporter {
  let running: { readonly title: string; readonly since: number } | undefined;
  const transient = (text: string): void => {
    if (output.columns === undefined) output.write(`  ${text}\n`);
    else output.write(`\r\u001b[K${text.slice(0, output.columns - 1)}`);
  };
  return {
    started(step: SetupStep) {
      running = { title: step.title, since: now() };
      if (output.columns === undefined) output.write(`set-up: ${step.title} ...\n`);
      else transient(`set-up: ${step.title} ...`);
    },
    progress(text) {
      if (output.columns === undefined) transient(text);
      else if (running === undefined) transient(`set-up: ${text}`);
      else transient(`set-up: ${running.title} (${seconds(now() - running.since)}): ${text}`);
    },
    finished(step, milliseconds) {
      if (running?.title === step.title) running = undefined;
      if (output.columns !== undefined) output.write('\r\u001b[K');
      output.write(`set-up: ${step.title}: done in ${seconds(milliseconds)}\n`);
    },
  };
}

/** Milliseconds as seconds with one decimal. */
export function seconds(milliseconds: number): string {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}
