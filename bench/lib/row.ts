/** What one measurement needs; every row makes and removes its own server. */
export interface BenchContext {
  /** Progress on stderr; stdout carries only the table. */
  progress(text: string): void;
  /** Scales the number of samples; 1 = as published. */
  readonly effort: number;
}

export interface Measured {
  readonly name: string;
  readonly unit: string;
  readonly samples: readonly number[];
  /** Samples of the bare operation underneath, measured in the same run; undefined for absolute limits. */
  readonly floor: readonly number[] | undefined;
  /** In words, e.g. `≤ 1.5 × floor`. */
  readonly budget: string;
  /** Whether the median (or the whole set of samples) keeps the budget. */
  ok(row: { readonly p50: number; readonly p99: number; readonly floor: number; readonly ratio: number }): boolean;
}

/** A row without a floor and without a budget that could be missed: what is told beside others. */
export function figure(name: string, unit: string, samples: readonly number[], budget = '–'): Measured {
  return { name, unit, samples, floor: undefined, budget, ok: () => true };
}

/** One bench: a name to ask for, and the rows it yields. */
export interface Bench {
  readonly name: string;
  readonly what: string;
  run(context: BenchContext): Promise<readonly Measured[]>;
}

/** A row of the table and of the JSON file. */
export interface BenchRow {
  readonly name: string;
  readonly unit: string;
  readonly n: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
  readonly floor: number | null;
  readonly ratio: number | null;
  readonly budget: string;
  readonly ok: boolean;
}
