import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { cachedTscKhz, tscRateFrom } from './tsc.ts';

const DETECTED = '[    0.052000] tsc: Detected 2094.183 MHz processor\r\n';
const REFINED = '[    2.791868] tsc: Refined TSC clocksource calibration: 2095.982 MHz\r\n';

describe('the rate of the time stamp counter', () => {
  test('is what the kernel refined, else what it detected', () => {
    expect(tscRateFrom('[    0.048000] tsc: Unable to calibrate against PIT')).toBeUndefined();
    expect(tscRateFrom(DETECTED)).toEqual({ khz: 2_094_183, refined: false });
    expect(tscRateFrom(DETECTED + REFINED)).toEqual({ khz: 2_095_982, refined: true });
  });

  test('keeps its leading zeros', () => {
    expect(tscRateFrom('tsc: Detected 3000.007 MHz processor')?.khz).toBe(3_000_007);
  });
});

describe('the cached rate', () => {
  let home: string;
  beforeEach(async () => {
    home = await mkdtemp(join(tmpdir(), 'aenv-tsc-'));
  });
  afterEach(() => rm(home, { recursive: true, force: true }));

  test('is measured once for a CPU model and again for another', async () => {
    let measured = 0;
    const measure = async () => 2_000_000 + measured++;
    expect(await cachedTscKhz(home, 'A', measure)).toBe(2_000_000);
    expect(await cachedTscKhz(home, 'A', measure)).toBe(2_000_000);
    expect(await cachedTscKhz(home, 'B', measure)).toBe(2_000_001);
    expect(measured).toBe(2);
  });

  test('is measured again when the file is damaged', async () => {
    await writeFile(join(home, 'tsc.json'), '{"cpuModel":"A","khz":"fast"}');
    expect(await cachedTscKhz(home, 'A', async () => 7)).toBe(7);
    expect(JSON.parse(await readFile(join(home, 'tsc.json'), 'utf8'))).toEqual({ cpuModel: 'A', khz: 7 });
  });
});
