import { PlatformError } from '@agentenv/core';
import { ENVD_VERSION, type ErrorCode } from '@agentenv/protocol';
import { Sandbox as SandboxCurrent } from 'e2b';
import { Sandbox as SandboxOld } from 'e2b-2-10';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { type EnvdFixture, startEnvd } from './testing/envd-fixture.ts';
import { TOKEN } from './testing/http-client.ts';

/** How the published clients take our errors (contract e2b.md section 10). */
const CLIENTS = [
  { version: 'e2b@2.51.0', old: false, Sandbox: SandboxCurrent },
  // The part of the interface used here is the same in both; the newer types describe it.
  { version: 'e2b@2.10.4', old: true, Sandbox: SandboxOld as unknown as typeof SandboxCurrent },
];

let envd: EnvdFixture;
beforeAll(async () => {
  envd = await startEnvd();
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});
afterEach(() => {
  vi.restoreAllMocks();
});

describe.each(CLIENTS)('$version', ({ Sandbox, old }) => {
  const connect = (url = envd.url) =>
    new Sandbox({
      sandboxId: 'itest',
      sandboxDomain: 'sandbox.test',
      envdVersion: ENVD_VERSION,
      envdAccessToken: TOKEN,
      sandboxUrl: url,
      apiKey: 'e2b_00',
    });

  /** What a promise rejects with. */
  const errorOf = async (promise: Promise<unknown>): Promise<{ readonly name: string; readonly message: string }> => {
    const caught = await promise.then(
      () => expect.fail('it succeeded'),
      (error: unknown) => error,
    );
    if (!(caught instanceof Error)) throw caught;
    return { name: caught.name, message: caught.message };
  };
  /** What is not found among files has a class of its own in newer clients. */
  const missingFile = old ? 'NotFoundError' : 'FileNotFoundError';

  describe('an RPC', () => {
    test.each<readonly [ErrorCode, string, RegExp]>([
      ['invalid_argument', 'InvalidArgumentError', /told/],
      ['unauthenticated', 'AuthenticationError', /told/],
      ['not_found', missingFile, /told/],
      ['capacity', old ? 'SandboxError' : 'RateLimitError', /told/],
      ['unavailable', 'TimeoutError', /told.*sandbox timeout/s],
      ['canceled', 'TimeoutError', /told/],
      ['deadline_exceeded', 'TimeoutError', /told.*timeoutMs/s],
      ['internal', 'SandboxError', /^\d+: .*told/],
      ['conflict', 'SandboxError', /^\d+: .*told/],
      ['permission_denied', 'SandboxError', /^\d+: .*told/],
      ['not_implemented', 'SandboxError', /^\d+: .*told/],
    ])('%s is %s', async (code, name, message) => {
      vi.spyOn(envd.guest.agent, 'stat').mockRejectedValue(new PlatformError(code, 'told'));
      expect(await errorOf(connect().files.getInfo('/x'))).toEqual({ name, message: expect.stringMatching(message) });
    });

    test('that did not find, or found already, is an answer where the client means it as one', async () => {
      const sandbox = connect();
      expect(await sandbox.files.exists('/no/such')).toBe(false);
      expect(await sandbox.files.makeDir('/tmp')).toBe(false);
      expect(await sandbox.commands.kill(4_000_000)).toBe(false);
    });

    test('of a stream has its code and message too, although its status is 200', async () => {
      const sandbox = connect();
      expect(await errorOf(sandbox.commands.run('true', { cwd: '/no/such' }))).toEqual({
        name: 'InvalidArgumentError',
        message: expect.stringContaining("cwd '/no/such' does not exist"),
      });
      expect(await errorOf(sandbox.commands.connect(4_000_000))).toMatchObject({ name: 'NotFoundError' });
      expect(await errorOf(sandbox.files.watchDir('/no/such', () => {}))).toMatchObject({ name: missingFile });
      expect(await errorOf(sandbox.commands.run('sleep 60', { timeoutMs: 100 }))).toMatchObject({
        name: 'TimeoutError',
      });
    });

    test('that feeds a process without stdin is a sandbox error', async () => {
      const command = await connect().commands.run('sleep 60', { background: true });
      onTestFinished(async () => {
        await command.kill();
      });
      expect(await errorOf(connect().commands.sendStdin(command.pid, 'x'))).toEqual({
        name: 'SandboxError',
        message: expect.stringMatching(/stdin of the process is not open/),
      });
    });
  });

  describe('a file request', () => {
    test.each<readonly [ErrorCode, string, RegExp]>([
      ['invalid_argument', 'InvalidArgumentError', /told/],
      ['unauthenticated', 'AuthenticationError', /told/],
      ['not_found', missingFile, /told/],
      ['capacity', old ? 'SandboxError' : 'RateLimitError', /told/],
      ['no_space', 'NotEnoughSpaceError', /told/],
      ['internal', 'SandboxError', /^500: told/],
      ['deadline_exceeded', 'SandboxError', /^504: told/],
    ])('%s is %s', async (code, name, message) => {
      vi.spyOn(envd.guest.agent, 'readFile').mockRejectedValue(new PlatformError(code, 'told'));
      expect(await errorOf(connect().files.read('/x'))).toEqual({ name, message: expect.stringMatching(message) });
    });

    test('with a wrong token is an authentication error', async () => {
      const stranger = new Sandbox({
        sandboxId: 'itest',
        sandboxDomain: 'sandbox.test',
        envdVersion: ENVD_VERSION,
        envdAccessToken: 'wrong',
        sandboxUrl: envd.url,
        apiKey: 'e2b_00',
      });
      expect(await errorOf(stranger.files.read('/etc/hostname'))).toMatchObject({ name: 'AuthenticationError' });
      expect(await errorOf(stranger.files.getInfo('/etc'))).toMatchObject({ name: 'AuthenticationError' });
      expect(await errorOf(stranger.commands.run('true'))).toMatchObject({ name: 'AuthenticationError' });
    });
  });

  test('a sandbox that is gone is told as the end of the sandbox, on every way to it', async () => {
    await using dead = await startEnvd();
    await dead.service[Symbol.asyncDispose]();
    const sandbox = connect(dead.url);
    expect(await sandbox.isRunning()).toBe(false);
    const stream = old ? 'NotFoundError' : 'SandboxNotFoundError';
    expect(await errorOf(sandbox.commands.run('true'))).toMatchObject({ name: stream });
    expect(await errorOf(sandbox.commands.connect(1))).toMatchObject({ name: stream });
    expect(await errorOf(sandbox.files.watchDir('/tmp', () => {}))).toMatchObject({ name: stream });
    const calls = [
      () => sandbox.files.getInfo('/x'),
      () => sandbox.files.list('/x'),
      () => sandbox.files.read('/x'),
      () => sandbox.files.write('/x', 'y'),
    ];
    for (const call of calls) {
      expect(await errorOf(call())).toMatchObject({ name: 'TimeoutError', message: expect.stringMatching(/sandbox/i) });
    }
  });
});
