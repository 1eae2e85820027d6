import { readFile } from 'node:fs/promises';
import type { Agent } from '@agentenv/agent';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';
import { finish, sh, start } from './support/shell.ts';

let guest: SanitizedGuest;
let agent: Agent;
beforeAll(async () => {
  guest = await startSanitizedGuest();
  agent = await guest.connect();
});
afterAll(async () => {
  await agent?.[Symbol.asyncDispose]();
  await guest.stop();
});

describe('a process', () => {
  test('inherits nothing of the agent: descriptors, signals, mask, oom score, group', async () => {
    const { stdout } = await sh(
      agent,
      'ls /proc/self/fd | tr "\\n" " "; grep -E "Sig(Blk|Ign)" /proc/self/status | tr -s "\\t\\n" " "; umask; cat /proc/self/oom_score_adj; [ "$(ps -o sid= -p $$ | tr -d " ")" = "$$" ] && echo leader',
    );
    expect(stdout).toBe('0 1 2 3 SigBlk: 0000000000000000 SigIgn: 0000000000000000 0022\n100\nleader\n');
    expect((await readFile(`/proc/${guest.pid}/oom_score_adj`, 'utf8')).trim()).toMatch(/^(-1000|0)$/);
  });

  test('is in the cgroup that a quiesce freezes', async () => {
    if (guest.cgroup === undefined) return;
    const process = await start(agent, ['sleep', '1000']);
    const pids = (await readFile(`${guest.cgroup}/cgroup.procs`, 'utf8')).trim().split('\n');
    expect(pids).toHaveLength(1);
    expect(pids).not.toContain(String(guest.pid));
    await process.signal(9);
    await finish(process);
  });

  test('gets its environment in layers, the later wins', async () => {
    const env = { FOO: 'bar', HOME: '/elsewhere', EMPTY: '' };
    const { stdout } = await finish(await start(agent, ['env'], { env }));
    expect(stdout.split('\n').sort()).toEqual(
      ['', 'EMPTY=', 'FOO=bar', 'HOME=/elsewhere', 'LOGNAME=root', 'USER=root']
        .concat(['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'])
        .sort(),
    );
  });

  test('starts in the default directory if that exists, else at home; a relative one is under home', async () => {
    const pwd = async (cwd: string, defaultCwd: string) => (await sh(agent, 'pwd', { cwd, defaultCwd })).stdout.trim();
    expect(await pwd('', '/usr')).toBe('/usr');
    expect(await pwd('', '/nowhere')).toBe('/root');
    expect(await pwd('', '')).toBe('/root');
    expect(await pwd('/usr/lib/..', '/')).toBe('/usr');
    expect(await pwd('.', '/usr')).toBe('/root');
    await expect(pwd('missing', '/')).rejects.toMatchObject({
      details: { status: 'BAD_CWD' },
      message: '/root/missing',
    });
    await expect(pwd('/etc/passwd', '/')).rejects.toMatchObject({ details: { status: 'BAD_CWD' } });
    await expect(sh(agent, 'pwd', { cwd: '/root', user: 'nobody' })).rejects.toMatchObject({
      details: { status: 'PERMISSION' },
    });
  });

  test('may reopen its standard streams although it is not root', async () => {
    const { stdout, stderr } = await sh(agent, 'echo out > /dev/stdout; echo err > /dev/stderr', { user: 'nobody' });
    expect({ stdout, stderr }).toEqual({ stdout: 'out\n', stderr: 'err\n' });
  });

  test('that cannot start says why', async () => {
    await expect(start(agent, ['true'], { user: 'no-such-user' })).rejects.toMatchObject({
      message: 'no-such-user',
      details: { status: 'UNKNOWN_USER' },
    });
    for (const argv of [['no-such-program'], ['/etc/passwd'], ['/nowhere/x'], [''], []]) {
      await expect(start(agent, argv)).rejects.toMatchObject({ details: { status: 'EXEC_FAILED' } });
    }
    expect((await agent.listProcesses()).filter(({ tag }) => tag === 'failed')).toEqual([]);
  });

  test('reports its exit at once with what its pipes still hold, and its output ends by itself', async () => {
    const process = await start(agent, ['sh', '-c', 'echo 12345; echo 123 >&2; (sleep 0.3; echo later) & exit 7']);
    const exit = await process.exit;
    expect(exit).toEqual({ code: 7, signal: 0, reason: 'ended', stdoutTotal: 6n, stderrTotal: 4n });
    expect((await finish(process)).stdout).toBe('12345\nlater\n');
  });

  test('is killed by its deadline, which the exit tells', async () => {
    const process = await start(agent, ['sleep', '1000'], { killAfterMs: 50 });
    expect(await process.exit).toMatchObject({ signal: 9, reason: 'deadline' });
    await finish(process);
  });

  test('with a reader of stdin that is gone: the host is told, and may still write what was on its way', async () => {
    const process = await start(agent, ['sh', '-c', 'exec 0<&-; exec sleep 1000'], { stdin: true });
    await expect.poll(() => process.stdinOpen, { timeout: 5000 }).toBe(false);
    await expect(process.writeStdin(Buffer.from('late'))).rejects.toMatchObject({ code: 'conflict' });
    await process.signal(9);
    await finish(process);
  });

  test('on a terminal has its size, its user, its signals; end of file does nothing', async () => {
    const script =
      'trap "echo winch; stty size" WINCH; stty size; stat -c %U $(tty); while read line; do echo "got $line"; done';
    const process = await start(agent, ['bash', '-c', script], { pty: { cols: 100, rows: 30 }, user: 'nobody' });
    let text = '';
    process.onOutput(({ data }) => {
      text += Buffer.from(data).toString();
    });
    await expect.poll(() => text, { timeout: 10_000 }).toContain('30 100\r\nnobody\r\n');
    await process.closeStdin().catch(() => {});
    await process.resize({ cols: 80, rows: 24 });
    const again = await start(agent, ['true']);
    await finish(again);
    await process.signal(1);
    expect(await process.exit).toMatchObject({ signal: 1 });
    await process.outputEnd;
  });

  test('takes megabytes on stdin through any number of windows', async () => {
    const process = await start(agent, ['sha256sum'], { stdin: true });
    const result = finish(process);
    for (let index = 0; index < 40; index++) await process.writeStdin(Buffer.alloc(100_000, index));
    await process.closeStdin();
    expect((await result).stdout).toMatch(/^[0-9a-f]{64} {2}-\n$/);
  });

  test('with a config that cannot be listed any more is refused', async () => {
    await expect(start(agent, ['true'], { config: new Uint8Array(1_000_000) })).rejects.toMatchObject({
      details: { status: 'LIMIT' },
    });
  });

  test('that has ended makes room for the next ones when the table is full', async () => {
    const config = new Uint8Array(100_000);
    for (let round = 0; round < 4; round++) {
      const started = await Promise.all(Array.from({ length: 5 }, () => start(agent, ['true'], { config })));
      await Promise.all(started.map(finish));
    }
    const listed = (await agent.listProcesses()).filter((process) => process.config.length === config.length);
    expect(listed.length).toBeGreaterThan(3);
    expect(listed.length).toBeLessThan(10);
  });

  test('given up while it starts leaves nothing', async () => {
    await Promise.allSettled(
      Array.from({ length: 20 }, async (_value, index) => {
        await agent.spawn(
          {
            ...{ user: 'root', argv: ['sleep', '987'], env: {}, cwd: '/', defaultCwd: '/', stdin: true, tag: 'gone' },
            ...{ config: new Uint8Array(), killAfterMs: 0 },
          },
          AbortSignal.timeout(index / 4),
        );
      }),
    );
    const left = await agent.listProcesses();
    for (const process of left.filter(({ tag }) => tag === 'gone')) await process.signal(9).catch(() => {});
    const count = async () => (await sh(agent, 'pgrep -fc "^sleep 987" || true')).stdout.trim();
    await expect.poll(count, { timeout: 10_000 }).toBe('0');
  });
});

describe('after a new connection', () => {
  test('processes go on, with stdin, output and exits of meanwhile', async () => {
    const tag = 'survivor';
    const cat = await start(agent, ['cat'], { stdin: true, tag, config: Buffer.from('blob') });
    const brief = await start(agent, ['sh', '-c', 'sleep 0.2; exit 5'], { tag: 'brief' });
    await cat.writeStdin(Buffer.from('before'));
    await agent[Symbol.asyncDispose]();
    agent = await guest.connect();
    const found = (await agent.listProcesses()).find((process) => process.tag === tag);
    expect(found).toMatchObject({ id: cat.id, pid: cat.pid, stdinOpen: true });
    expect(Buffer.from(found?.config ?? [])).toEqual(Buffer.from('blob'));
    const exited = (await agent.listProcesses()).find(({ id }) => id === brief.id);
    expect(await exited?.exit).toMatchObject({ code: 5 });
    if (found === undefined) return;
    const result = finish(found);
    await found.writeStdin(Buffer.from(' after'));
    await found.closeStdin();
    expect((await result).stdout).toBe('before after');
  });

  test('a process that waits for credit goes on where it was', async () => {
    const process = await start(agent, ['seq', '100000']);
    await agent[Symbol.asyncDispose]();
    agent = await guest.connect();
    const found = (await agent.listProcesses()).find(({ id }) => id === process.id);
    if (found === undefined) throw new Error('the process is gone');
    const { stdout } = await finish(found);
    expect(stdout.split('\n').at(-2)).toBe('100000');
    expect(stdout.split('\n')[0]).toBe('1');
  });
});
