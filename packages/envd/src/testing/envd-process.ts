/**
 * A service with its native guest in a process of its own, so that its memory can be measured apart from its clients'.
 * Prints its port; ends when its stdin does.
 */
import { startEnvd } from './envd-fixture.ts';

await using envd = await startEnvd();
process.stdout.write(`${envd.port}\n`);
await new Promise<void>((resolve) => process.stdin.once('end', resolve).resume());
