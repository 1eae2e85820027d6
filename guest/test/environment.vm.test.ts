import { randomBytes } from 'node:crypto';
import type { Agent, WatchEvent } from '@agentenv/agent';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Machine, startMachine } from './support/machine.ts';
import { sh, start } from './support/shell.ts';

const MiB = 1024 * 1024;
const owner = { uid: 1000, gid: 1000, mode: 0o644 };

async function* once(content: Uint8Array): AsyncGenerator<Uint8Array> {
  yield content;
}

describe('a microVM with the agent as its init', () => {
  let machine: Machine;
  let agent: Agent;
  beforeAll(async () => {
    machine = await startMachine();
    agent = machine.agent;
  });
  afterAll(async () => {
    await machine?.[Symbol.asyncDispose]();
  });

  const output = async (script: string, user = 'root'): Promise<string> => {
    const { stdout, stderr, code } = await sh(agent, script, { user });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return stdout.trim();
  };

  test('says nothing on its console', async () => {
    expect(await machine.console()).not.toContain('aenv-guest');
  });

  test('has the file systems of the guest environment', async () => {
    const mounts = (await output('cat /proc/mounts')).split('\n').map((line) => line.split(' '));
    const typeOf = new Map(mounts.map(([, target, type]) => [target, type]));
    expect(typeOf.get('/')).toBe('overlay');
    expect(typeOf.get('/proc')).toBe('proc');
    expect(typeOf.get('/sys')).toBe('sysfs');
    expect(typeOf.get('/sys/fs/cgroup')).toBe('cgroup2');
    expect(typeOf.get('/dev')).toBe('devtmpfs');
    expect(typeOf.has('/tmp')).toBe(false);
    const optionsOf = new Map(mounts.map(([, target, , options]) => [target, options]));
    expect(optionsOf.get('/dev/pts')).toMatch(/gid=5,mode=620,ptmxmode=666/);
    const memory = Number(await output("awk '/MemTotal/ {print $2}' /proc/meminfo"));
    for (const target of ['/dev/shm', '/run']) {
      expect(typeOf.get(target)).toBe('tmpfs');
      const kilobytes = Number(/size=(\d+)k/.exec(optionsOf.get(target) ?? '')?.[1]);
      expect(kilobytes).toBeLessThanOrEqual(memory / 4 + 4);
      expect(kilobytes).toBeGreaterThan(memory / 5);
    }
    expect(await output('stat -c %a /tmp /dev/shm /run')).toBe('1777\n1777\n755');
    expect(await output('readlink /dev/fd /dev/stdin /dev/stdout /dev/stderr')).toBe(
      '/proc/self/fd\n/proc/self/fd/0\n/proc/self/fd/1\n/proc/self/fd/2',
    );
    expect(await output('tail -n +2 /proc/swaps')).toBe('');
  });

  test('has its names, its network and its limits', async () => {
    const name = await output('hostname');
    expect(await output('cat /etc/hostname')).toBe(name);
    expect(await output(`getent ahostsv4 ${name} | awk '{print $1}'`)).toMatch(/^127\./);
    expect(await output('cat /etc/resolv.conf')).toBe('nameserver 169.254.0.21');
    expect(await output('ip -o addr show lo')).toMatch(/127\.0\.0\.1\/8[\s\S]*::1\/128/);
    const eth0 = await output('ip -o addr show eth0');
    expect(eth0).toContain('169.254.0.22/30');
    expect(eth0).toContain('fd00:ae::2/64');
    expect(eth0).not.toContain('tentative');
    expect(await output('ip route show default')).toContain('via 169.254.0.21 dev eth0');
    expect(await output('ip -6 route show default')).toContain('via fd00:ae::1 dev eth0');
    expect(await output('ulimit -n; ulimit -Hn; ulimit -c; umask', 'user')).toBe('1048576\n1048576\n0\n0022');
    expect(await output('cat /proc/1/oom_score_adj /proc/self/oom_score_adj')).toBe('-1000\n100');
    expect(await output('cat /proc/self/cgroup /proc/1/cgroup')).toBe('0::/user\n0::/');
  });

  test('protects links as distributions do', async () => {
    expect(await output('cd /tmp && ln /etc/shadow stolen 2>&1 || true', 'user')).toContain('not permitted');
  });

  test('lets root load modules, and nobody else at the port of the agent', async () => {
    expect(await output('modprobe tun && test -c /dev/net/tun && echo loaded')).toBe('loaded');
    expect(await output('stat -c %a /dev/vport*')).toBe('600');
    expect((await sh(agent, 'cat /dev/vport*')).code).not.toBe(0);
  });

  test('renames directories of the image, and gives a terminal to its user', async () => {
    expect(await output('mv /usr/share/doc /usr/share/papers && ls -d /usr/share/papers')).toBe('/usr/share/papers');
    const terminal = await start(agent, ['sh', '-c', 'stat -c "%U %G %a" $(tty)'], {
      user: 'user',
      pty: { cols: 80, rows: 24 },
    });
    let text = '';
    terminal.onOutput(({ data }) => {
      text += Buffer.from(data).toString();
    });
    await terminal.outputEnd;
    expect(text).toBe('user tty 620\r\n');
  });

  test('takes clock, host name and files from activate before anything is thawed', async () => {
    await output('date -s @1000000000 > /dev/null');
    const files = [{ path: '/run/e2b/.E2B_SANDBOX', mode: 0o644, content: 'true' }];
    await agent.activate({ key: new Uint8Array(16), generation: 'g', resetStreams: false, hostname: 'named', files });
    expect(await output('hostname; cat /run/e2b/.E2B_SANDBOX')).toBe('named\ntrue');
    expect(Math.abs(await agent.clockSkew())).toBeLessThan(1000);
  });

  test('freezes and thaws its processes around a capture', async () => {
    const counter = await start(agent, ['sh', '-c', 'while :; do echo x; sleep 0.01; done']);
    let ticks = 0;
    counter.onOutput(() => {
      ticks++;
    });
    await expect.poll(() => ticks, { timeout: 20_000 }).toBeGreaterThan(3);
    expect((await agent.quiesce(10_000)).processes).toBeGreaterThanOrEqual(1);
    await agent.activate({ key: new Uint8Array(16), generation: 'g', resetStreams: false, hostname: '', files: [] });
    const before = ticks;
    await expect.poll(() => ticks, { timeout: 20_000 }).toBeGreaterThan(before + 3);
    await counter.signal(9);
    await counter.exit;
  });

  test('stages uploads where files cannot be unnamed: nothing is seen of it, nothing is left of it', async () => {
    const events: WatchEvent[] = [];
    await using _watch = await agent.watch('/home/user', { recursive: true }, (event) => events.push(event));
    const request = { ...owner, path: '/home/user/new/file', xattrs: new Map([['key', Buffer.from('value')]]) };
    await agent.writeFile(request, once(randomBytes(300_000)));
    await agent.writeFile(request, once(Buffer.from('second')));
    expect(await output('cat /home/user/new/file; ls -A /home/user/new')).toBe('secondfile');
    const { xattrs } = await agent.stat('/home/user/new/file');
    expect(Buffer.from(xattrs.get('key') ?? []).toString()).toBe('value');

    const controller = new AbortController();
    const abandoned = agent.writeFile(
      { ...owner, path: '/home/user/new/half', xattrs: new Map() },
      (async function* () {
        for (let piece = 0; ; piece++) {
          if (piece === 20) controller.abort();
          yield randomBytes(50_000);
        }
      })(),
      controller.signal,
    );
    await expect(abandoned).rejects.toMatchObject({ code: 'canceled' });
    await expect.poll(() => output('ls -A /home/user/new'), { timeout: 20_000 }).toBe('file');
    await agent.remove('/home/user/new');
    await expect.poll(() => events.some(({ path, mask }) => path === 'new' && mask === 0x200)).toBe(true);
    expect(new Set(events.map(({ path }) => path))).toEqual(new Set(['new', 'new/file']));
  });

  test('without space on its disk: a status, the target untouched, and room again afterwards', async () => {
    const write = (path: string, content: Uint8Array) =>
      agent.writeFile({ ...owner, path, xattrs: new Map() }, once(content));
    await write('/home/user/kept', Buffer.from('as it was'));
    await expect(write('/home/user/kept', randomBytes(80 * MiB))).rejects.toMatchObject({ code: 'no_space' });
    await expect(write('/home/user/big', randomBytes(80 * MiB))).rejects.toMatchObject({ code: 'no_space' });
    expect(await output('cat /home/user/kept; ls -A /home/user | grep -c aenv || true')).toBe('as it was0');
    await output('cat /dev/zero > /home/user/filler 2>/dev/null || true');
    expect((await sh(agent, 'echo alive')).stdout).toBe('alive\n');
    await agent.activate({
      ...{ key: new Uint8Array(16), generation: 'g', resetStreams: false, hostname: 'named' },
      files: [{ path: '/run/e2b/.E2B_SANDBOX', mode: 0o644, content: 'again' }],
    });
    await agent.remove('/home/user/filler');
    expect(await write('/home/user/kept', randomBytes(MiB))).toEqual({ size: BigInt(MiB) });
  });

  test('stays below a megabyte after all that', async () => {
    const { agentRss } = await agent.metrics();
    expect(agentRss).toBeLessThan(MiB);
  });
});

describe('switched off from inside', () => {
  test.each([
    ['sudo poweroff', 'Power down'],
    ['sudo reboot', 'Restarting system'],
    ['sudo halt', 'Power down'],
    ['sudo shutdown -h now', 'Power down'],
  ])('%s ends the machine within seconds, whatever ignores SIGTERM', async (command, farewell) => {
    await using machine = await startMachine();
    await start(machine.agent, ['sh', '-c', 'trap "" TERM; while :; do sleep 1; done']);
    const started = performance.now();
    await start(machine.agent, ['sh', '-c', command], { user: 'user' });
    expect(await machine.ended).toBe(0);
    expect(performance.now() - started).toBeLessThan(4000);
    expect(await machine.console()).toContain(farewell);
    await expect(machine.agent.closed).resolves.toMatchObject({ kind: 'disconnected' });
  });
});
