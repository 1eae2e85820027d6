import { percentile } from '../../e2e/lib/statistics.ts';
import type { BenchRow, Measured } from './row.ts';

const round = (value: number) => Number(value.toPrecision(4));

/** Percentiles and verdict of one measurement. */
export function summarise(measured: Measured): BenchRow {
  const p50 = percentile(measured.samples, 50);
  const p99 = percentile(measured.samples, 99);
  const floor = measured.floor === undefined ? Number.NaN : percentile(measured.floor, 50);
  const ratio = p50 / floor;
  return {
    name: measured.name,
    unit: measured.unit,
    n: measured.samples.length,
    p50: round(p50),
    p95: round(percentile(measured.samples, 95)),
    p99: round(p99),
    floor: Number.isNaN(floor) ? null : round(floor),
    ratio: Number.isNaN(ratio) ? null : round(ratio),
    budget: measured.budget,
    ok: measured.ok({ p50, p99, floor, ratio }),
  };
}

/** A plain text table, one line per row. */
export function formatTable(rows: readonly BenchRow[]): string {
  const header = ['name', 'unit', 'n', 'p50', 'p95', 'p99', 'floor', 'ratio', 'budget', 'ok'];
  const cells = [
    header,
    ...rows.map((row) => [
      row.name,
      row.unit,
      String(row.n),
      String(row.p50),
      String(row.p95),
      String(row.p99),
      row.floor === null ? '–' : String(row.floor),
      row.ratio === null ? '–' : row.ratio.toFixed(2),
      row.budget,
      row.ok ? 'yes' : 'NO',
    ]),
  ];
  const widths = header.map((_, column) => Math.max(...cells.map((line) => line[column]?.length ?? 0)));
  return cells
    .map((line) =>
      line
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
