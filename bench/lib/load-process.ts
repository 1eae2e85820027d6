import { loadRate } from './load.ts';

/** Child process: takes the options of `loadRate` as JSON in its first argument and prints the result as JSON. */
const options = JSON.parse(process.argv[2] ?? '{}') as Parameters<typeof loadRate>[0];
console.log(JSON.stringify(await loadRate(options)));
