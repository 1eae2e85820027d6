import { defineConfig } from 'vitest/config';

/**
 * Four projects: `unit` (pure, one module graph per worker, which halves its time), `integration` (namespaces, the native guest
 * agent), `vm` (real microVMs of one part of the system) and `e2e` (whole servers; one worker, so that timings and memory stay
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
          include: ['{packages,guest}/**/*.vm.test.ts'],
          maxWorkers: 2,
          testTimeout: 180_000,
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: 'e2e',
          include: ['e2e/**/*.vm.test.ts'],
          fileParallelism: false,
          testTimeout: 180_000,
          hookTimeout: 300_000,
        },
      },
    ],
  },
});
