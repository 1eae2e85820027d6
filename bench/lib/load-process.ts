import { json } from 'node:stream/consumers';
import { loadRate } from './load.ts';

/** Child process: takes the options of `loadRate` as JSON on its standard input and prints the result as JSON. */
const options = (await json(process.stdin)) as Parameters<typeof loadRate>[0];
console.log(JSON.stringify(await loadRate(options)));
