import type { Resources } from '@agentenv/core';
import type { Backend, LaunchPlan, RootFilesystem, RunningSandbox, StoredSnapshot } from '../backend.ts';

/** Ends of a generation that come from inside it or from its engine. */
export type ProvokedEnd = 'engine-died' | 'guest-poweroff' | 'guest-reboot' | 'guest-panic';

/** What the contract suite needs around a backend; one per suite, so that an expensive template is prepared once. */
export interface BackendHarness extends AsyncDisposable {
  readonly backend: Backend;
  readonly rootfs: RootFilesystem;
  readonly resources: Resources;
  /** A host outside that answers TCP, as an address and port of the test's own network. */
  readonly internetHost: string;
  /** Time within which a restore, an end or a clean-up must be over, milliseconds. */
  readonly deadlineMs: number;
  /** An empty directory, removed with the harness. */
  emptyDirectory(): Promise<string>;
  /** Makes the generation end in that way, without the backend's help. */
  provoke(sandbox: RunningSandbox, end: ProvokedEnd): Promise<void>;
  /** Whether a program in the sandbox reaches `internetHost`. */
  reachesInternet(sandbox: RunningSandbox): Promise<boolean>;
  /** Abandons the backend as a killed server would, leaving its generations, and answers a new one over the same host. */
  crash(): Promise<Backend>;
  /** What is on the host for generations: processes, directories, devices, one line each; empty when all is clean. */
  leftovers(): Promise<readonly string[]>;
}

/** What the parts of the contract suite share. */
export interface SuiteContext {
  /** What the suite has by the time a test runs. */
  get(): { readonly harness: BackendHarness; readonly backend: Backend; readonly template: StoredSnapshot };
  planFor(): LaunchPlan;
  /** Ended after each test. */
  readonly live: RunningSandbox[];
  expectClean(): Promise<void>;
}
