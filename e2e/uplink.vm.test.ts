import { describe, expect, it } from 'vitest';
import { remainsOfStopped } from './lib/remains.ts';
import { NO_POOL, startServer } from './lib/server.ts';

// No sandbox is made here, so nothing uses the uplink.
describe('the uplink of a server that was killed', () => {
  it('is ended by the server that took it over, which ends in order then', { timeout: 300_000 }, async () => {
    await using server = await startServer({ config: NO_POOL, uplink: 'pasta' });
    await server.kill9();
    await server.restart();
    expect(server.output()).toContain('going on with the gateway of a former server');
    expect(await server.stop()).toBe(0);
    expect(server.output()).toContain('the server has ended');
    expect(remainsOfStopped(server)).toEqual([]);
  });
});
