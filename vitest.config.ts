import { defineConfig } from 'vitest/config';

/** Suites of whole servers in which little depends on how soon something happens. */
const PATIENT = 'e2e/{cli,fork,model,snapshots,transfer,without-memory}.vm.test.ts';

/**
 * Four projects: `unit` (pure, one module graph per worker, which halves its time), `integration` (namespaces, the native guest
 * agent), `vm` (real microVMs of one part of the system, and patient servers) and `e2e` (the other servers; one worker, so that timings and memory stay
 * predictable on two cores). The others have two workers, so that all of it stays within the time of a run.
 */
export default defineConfig({
  // Not below node_modules: tests may run as root, and a later `npm ci` as an ordinary user could not remove it.
  cacheDir: '.aenv/vitest',
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          isolate: false,
          maxWorkers: 2,
          include: ['packages/**/*.test.ts', 'scripts/**/*.test.ts', 'bench/**/*.test.ts', 'e2e/**/*.test.ts'],
          exclude: ['**/node_modules/**', '**/*.integration.test.ts', '**/*.vm.test.ts'],
        },
      },
      {
        test: {
          name: 'integration',
          include: ['{packages,guest,scripts}/**/*.integration.test.ts'],
          maxWorkers: 2,
          testTimeout: 60_000,
          hookTimeout: 60_000,
        },
      },
      {
        test: {
          name: 'vm',
          include: ['{packages,guest}/**/*.vm.test.ts', PATIENT],
          maxWorkers: 2,
          testTimeout: 180_000,
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: 'e2e',
          include: ['e2e/**/*.vm.test.ts'],
          exclude: [PATIENT],
          fileParallelism: false,
          testTimeout: 180_000,
          hookTimeout: 300_000,
        },
      },
    ],
  },
});
