import { defineConfig } from 'vitest/config';

/**
 * Three projects: `unit` (pure, two workers with a module graph each, which halves its time), `integration` (namespaces, the
 * native guest agent; two workers, so that all of it stays within the time of a run) and
 * `vm` (real microVMs; one worker, so that timings and memory stay predictable on two cores).
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
          include: ['packages/**/*.vm.test.ts', 'guest/**/*.vm.test.ts', 'e2e/**/*.vm.test.ts'],
          fileParallelism: false,
          testTimeout: 180_000,
          hookTimeout: 300_000,
        },
      },
    ],
  },
});
