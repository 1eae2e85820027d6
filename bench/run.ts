import { writeFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { describeHost } from './lib/host.ts';
import type { BenchRow } from './lib/row.ts';
import { formatTable, summarise } from './lib/table.ts';
import { BENCHES } from './rows/index.ts';

const HELP = `Usage: npm run bench [-- NAME… --json FILE --effort FACTOR]

Measures speed and memory, each figure beside the floor it stands on, and prints a table.

  NAME             only these benches: ${BENCHES.map(({ name }) => name).join(', ')}
  --json FILE      also write an array of {name, unit, n, p50, p95, p99, floor, ratio, budget, ok}
  --effort FACTOR  scale the number of samples (default 1)
  --list           what each bench measures

Exit code 1 when a row misses its budget, 2 when a bench failed.`;

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      json: { type: 'string' },
      effort: { type: 'string', default: '1' },
      list: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
    },
  });
  if (values.help) {
    console.log(HELP);
    return;
  }
  if (values.list) {
    for (const { name, what } of BENCHES) console.log(`${name.padEnd(16)} ${what}`);
    return;
  }
  const effort = Number(values.effort);
  if (!(effort > 0)) throw new Error(`--effort takes a positive number, not ${values.effort}`);
  const unknown = positionals.filter((name) => !BENCHES.some((bench) => bench.name === name));
  if (unknown.length > 0) throw new Error(`no such bench: ${unknown.join(', ')} (see --list)`);
  const chosen = positionals.length === 0 ? BENCHES : BENCHES.filter(({ name }) => positionals.includes(name));

  console.error(describeHost());
  const rows: BenchRow[] = [];
  for (const bench of chosen) {
    console.error(`${bench.name}: ${bench.what}`);
    const progress = (text: string) => console.error(`  ${text}`);
    try {
      rows.push(...(await bench.run({ progress, effort })).map(summarise));
    } catch (error) {
      // What the others measured is worth telling.
      reportFailure(error);
    }
  }
  console.log(formatTable(rows));
  if (values.json !== undefined) await writeFile(values.json, `${JSON.stringify(rows, null, 2)}\n`);
  if (rows.some(({ ok }) => !ok)) process.exitCode ??= 1;
}

function reportFailure(error: unknown): void {
  console.error(`bench: failed: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
  process.exitCode = 2;
}

main().catch(reportFailure);
