import dns from 'node:dns';
import type { LookupFunction } from 'node:net';

/**
 * Child process: what an ordinary program does that knows a domain and a key only (`E2B_DOMAIN`, `E2B_API_KEY`), with a
 * resolver that leads every name to this machine. Prints what it saw as one line of JSON.
 */
const toLoopback: LookupFunction = (_name, { all }, answer) => {
  if (all === true) answer(null, [{ address: '127.0.0.1', family: 4 }]);
  else answer(null, '127.0.0.1', 4);
};
Object.assign(dns, { lookup: toLoopback });

// Loaded behind the resolver, which it takes as it finds it.
const { Sandbox } = await import('e2b');
const sandbox = await Sandbox.create('base', { envs: { GREETING: 'hello' }, secure: true });
const { stdout } = await sandbox.commands.run('printenv GREETING');
await sandbox.files.write('note.txt', 'kept');
const note = await sandbox.files.read('note.txt');
const signed = await (await fetch(await sandbox.downloadUrl('note.txt'))).text();
const host = sandbox.getHost(3000);
const port = await (await fetch(`https://${host}/`)).json();
const running = await sandbox.isRunning();
const killed = await sandbox.kill();
const runningAfter = await sandbox.isRunning();
console.log(JSON.stringify({ stdout, note, signed, host, port, running, killed, runningAfter, id: sandbox.sandboxId }));
