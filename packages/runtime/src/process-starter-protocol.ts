/** Program and arguments. */
export type Argv = readonly [string, ...string[]];

export interface CommandRequest {
  readonly argv: Argv;
  readonly stdin: string;
  /** Characters kept of its standard output, the last ones. */
  readonly maxOutput?: number;
}

export type StarterRequest =
  /** Runs a command to its end, which is the answer. */
  | { readonly id: number; readonly command: CommandRequest }
  /** About a command: ends it with everything it started. */
  | { readonly id: number; readonly end: true }
  /** Starts a program that goes on without its starter, with that environment; the answer is who it is. */
  | { readonly id: number; readonly program: Argv; readonly env: Readonly<Record<string, string>> }
  /** Waits for the end of such a program, which is the answer; asked once for each. */
  | { readonly id: number; readonly endOf: number };

/** How a command ended. */
export interface CommandEnd {
  readonly id: number;
  readonly stdout: string;
  readonly stderr: string;
  /** What is wrong with it, in words that follow the program's name; undefined when it succeeded. */
  readonly failure?: string;
}

export interface StartedProgram {
  readonly id: number;
  readonly pid: number;
  /** Field 22 of its `/proc/PID/stat`. */
  readonly startTime: number;
}

/** How a program that went on ended, or why it was not started. */
export interface ProgramEnd {
  readonly id: number;
  readonly how: string;
  /** Its last words on stderr. */
  readonly words: string;
}

/** That pid is of no program this starter has started. */
export interface UnknownProgram {
  readonly id: number;
  readonly unknown: number;
}

export type StarterAnswer = CommandEnd | StartedProgram | ProgramEnd | UnknownProgram;
