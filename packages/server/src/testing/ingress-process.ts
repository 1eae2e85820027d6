import { once } from 'node:events';
import { startIngress } from './ingress-fixture.ts';

/**
 * Child process: the data plane alone, in front of a native guest. Prints its port, the host that leads to a port of the
 * guest (`PORT` in place of it) and a process in the guest's network namespace as JSON; ends with its standard input.
 */
const ingress = await startIngress();
console.log(
  JSON.stringify({ port: ingress.port, host: ingress.host(0).replace(/^0/, 'PORT'), pid: ingress.guest.pid }),
);
process.stdin.resume();
await once(process.stdin, 'end');
await ingress[Symbol.asyncDispose]();
