import type { Agent, GuestProcess } from '@agentenv/agent';
import { rootProcess } from '@agentenv/agent/testing';
import { Sandbox } from 'e2b';
import { openBareHost } from '../lib/bare.ts';
import type { Bench } from '../lib/row.ts';
import { ARTIFACTS, benchServer, NO_POOL, repeat, timed } from '../lib/session.ts';

const ENTRIES = 10_000;
const DIRECTORY = '/home/user/many';
const FILL = `mkdir -p ${DIRECTORY} && cd ${DIRECTORY} && seq -f 'file-%05g.txt' ${ENTRIES} | xargs touch`;
/** Echoes what is typed by itself, as every terminal does; the program only keeps it open. */
const TYPED = 'x';

async function fill(agent: Agent): Promise<void> {
  const child = await agent.spawn(rootProcess(['/bin/sh', '-c', FILL]));
  child.onOutput(() => undefined);
  if ((await child.exit).code !== 0) throw new Error('the directory could not be filled');
}

/** Every page through the raw agent. */
async function listRaw(agent: Agent): Promise<number> {
  let count = 0;
  let after: Uint8Array | undefined;
  do {
    const page = await agent.listDir(DIRECTORY, { depth: 1, max: 0, ...(after === undefined ? {} : { after }) });
    count += page.entries.length;
    after = page.next;
  } while (after !== undefined);
  return count;
}

function expectAll(count: number): void {
  if (count !== ENTRIES) throw new Error(`${count} of ${ENTRIES} entries`);
}

/** A listing through the SDK beside the same entries from the raw agent. */
export const list: Bench = {
  name: 'list',
  what: `files.list of ${ENTRIES} entries, beside the same from the raw agent`,
  async run({ effort }) {
    const samples = Math.max(5, Math.round(20 * effort));
    await using server = await benchServer(NO_POOL);
    await using bare = await openBareHost(server.home, ARTIFACTS);
    await using machine = await bare.restore();
    const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000 });
    await fill(machine.agent);
    await sandbox.commands.run(FILL);
    const floor: number[] = [];
    const listed = await repeat(samples, async () => {
      const raw = await timed(() => listRaw(machine.agent));
      expectAll(raw.value);
      floor.push(raw.ms);
      const viaSdk = await timed(() => sandbox.files.list(DIRECTORY));
      expectAll(viaSdk.value.length);
      return viaSdk.ms;
    });
    await sandbox.kill();
    return [
      {
        name: `list of ${ENTRIES.toLocaleString('en').replace(',', ' ')}`,
        unit: 'ms',
        samples: listed,
        floor,
        budget: '≤ 1.5 × floor + 100 ms',
        ok: ({ p50, floor: bareMs }) => p50 <= 1.5 * bareMs + 100,
      },
    ];
  },
};

/** Resolves at the next output. */
function createEcho(): { arrived(): void; next(): Promise<void> } {
  let waiting: PromiseWithResolvers<void> | undefined;
  return {
    arrived() {
      waiting?.resolve();
      waiting = undefined;
    },
    next() {
      waiting ??= Promise.withResolvers();
      return waiting.promise;
    },
  };
}

async function openRawTerminal(agent: Agent, onOutput: () => void): Promise<GuestProcess> {
  const terminal = await agent.spawn(rootProcess(['/bin/cat'], { stdin: true, pty: { cols: 80, rows: 24 } }));
  terminal.onOutput(onOutput);
  return terminal;
}

/** A key typed in a terminal and its echo, through the SDK beside the raw agent. */
export const terminal: Bench = {
  name: 'terminal',
  what: 'a key in a terminal and its echo, through the SDK beside the raw agent',
  async run({ effort }) {
    const samples = Math.max(20, Math.round(200 * effort));
    await using server = await benchServer(NO_POOL);
    await using bare = await openBareHost(server.home, ARTIFACTS);
    await using machine = await bare.restore();
    const sandbox = await Sandbox.create('base', { ...server.sdk, timeoutMs: 600_000 });
    const rawEcho = createEcho();
    const raw = await openRawTerminal(machine.agent, rawEcho.arrived);
    const echo = createEcho();
    let output = '';
    const shell = await sandbox.pty.create({
      ...{ cols: 80, rows: 24, timeoutMs: 0 },
      onData(data) {
        output += Buffer.from(data).toString();
        echo.arrived();
      },
    });
    await sandbox.pty.sendInput(shell.pid, Buffer.from('echo re""ady; exec cat\n'));
    while (!output.includes('ready')) await echo.next();

    const typeRaw = async () => {
      const arrived = rawEcho.next();
      await raw.writeStdin(Buffer.from(TYPED));
      await arrived;
    };
    const type = async () => {
      const arrived = echo.next();
      await sandbox.pty.sendInput(shell.pid, Buffer.from(TYPED));
      await arrived;
    };
    for (let index = 0; index < 10; index++) {
      await typeRaw();
      await type();
    }
    const floor: number[] = [];
    const typed = await repeat(samples, async () => {
      floor.push((await timed(typeRaw)).ms);
      return (await timed(type)).ms;
    });
    await raw.signal(9);
    await shell.kill();
    await sandbox.kill();
    return [
      {
        name: 'terminal: key → echo',
        unit: 'ms',
        samples: typed,
        floor,
        budget: '≤ 1.5 × floor + 5 ms',
        ok: ({ p50, floor: bareMs }) => p50 <= 1.5 * bareMs + 5,
      },
    ];
  },
};
