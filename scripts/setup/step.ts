import type { RunOptions } from '../lib/command.ts';
import type { RepositoryPaths } from '../lib/paths.ts';

/** What a step may use; everything outside comes through here. */
export interface SetupContext {
  readonly paths: RepositoryPaths;
  readonly env: NodeJS.ProcessEnv;
  /** Debian's name of this machine's architecture. */
  readonly architecture: 'amd64' | 'arm64';
  readonly uid: number;
  /** One line of progress under the running step. */
  progress(text: string): void;
  /** Runs a command with its output in the log; returns its standard output. */
  run(command: string, args: readonly string[], options?: Partial<RunOptions>): Promise<string>;
  /** Runs what two steps must not do at the same time. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
  /** A fresh, empty directory for half-finished work of this step. */
  scratch(name: string): Promise<string>;
}

/** What a finished step says about itself; written last, read by the next set-up and by later steps. */
export interface StepResult {
  /** Files the step made, relative to the artefact directory, with their sizes in bytes. */
  readonly files: Readonly<Record<string, number>>;
  /** Facts for later steps and the index. */
  readonly facts: Readonly<Record<string, string>>;
}

export type StepResults = Readonly<Record<string, StepResult>>;

/** One idempotent part of set-up. */
export interface SetupStep {
  readonly name: string;
  /** Shown while it runs. */
  readonly title: string;
  /** It must run as root; the reason is shown before sudo asks. */
  readonly rootBecause?: string;
  /** It takes long and needs no result of another: it runs beside those before it, from the start. */
  readonly apart?: boolean;
  /** Digest of everything the result depends on, with the results of the steps before it; a finished step is stamped with it. */
  key?(context: SetupContext, earlier: StepResults): Promise<string>;
  /** For a step that can see its result itself: true when nothing is to be done. Such a step needs no key. */
  present?(context: SetupContext): Promise<boolean>;
  run(context: SetupContext, earlier: StepResults): Promise<StepResult>;
}
