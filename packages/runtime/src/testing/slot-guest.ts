import type { Exec } from '../exec.ts';
import { GUEST_ADDRESSING } from '../network/addressing.ts';
import type { NetworkSlot } from '../network/slot.ts';
import { createTestNamespace, ipInNamespace } from './fake-internet.ts';
import { startNamespaceProgram } from './namespace-program.ts';

/** What a network attempt from inside a sandbox came to; see `guest-probe.ts`. */
export interface Outcome {
  /** `connected`, `answered`, `timeout`, or an errno name. */
  readonly outcome: string;
  readonly reply?: string;
  readonly ms: number;
}

/** Errno names with which a rejected attempt ends; a dropped one would be `timeout`. */
export const REFUSAL = /^(ECONNREFUSED|ECONNRESET|EHOSTUNREACH|EACCES|ENETUNREACH|EPERM)$/;

/** `device` of `createNetworkSlots` for `enterSlot`: a veth in place of the tap an engine would attach to. */
export const GUEST_DEVICE: readonly string[] = ['link add tap0 type veth peer name guest0'];

type EnteredSlot = Pick<NetworkSlot, 'networkNamespacePath' | 'release'>;

/** A sandbox without an engine: a namespace with the guest's addresses on the other end of a slot's `tap0`. */
export interface SlotGuest<Slot extends EnteredSlot = NetworkSlot> extends AsyncDisposable {
  readonly slot: Slot;
  /** File of its namespace. */
  readonly path: string;
  /** Sends a request and reads the reply; to port 80 HTTP, to port 7 echo. */
  tcp(host: string, port?: number, options?: Readonly<Record<string, unknown>>): Promise<Outcome>;
  udp(host: string, port?: number, options?: Readonly<Record<string, unknown>>): Promise<Outcome>;
  ask(request: Readonly<Record<string, unknown>>): Promise<Outcome>;
}

/** Moves into a slot made with `GUEST_DEVICE`; disposing releases the slot. */
export async function enterSlot<Slot extends EnteredSlot>({
  exec,
  slot,
  path,
}: {
  readonly exec: Exec;
  readonly slot: Slot;
  readonly path: string;
}): Promise<SlotGuest<Slot>> {
  const stack = new AsyncDisposableStack();
  stack.defer(() => slot.release());
  try {
    stack.use(await createTestNamespace(exec, path, []));
    const { ipv4, ipv6, mac, gatewayIpv4, gatewayIpv6 } = GUEST_ADDRESSING;
    await ipInNamespace(exec, slot.networkNamespacePath, [`link set guest0 netns ${path}`]);
    await ipInNamespace(exec, path, [
      `link set guest0 address ${mac}`,
      'link set guest0 name eth0',
      `addr add ${ipv4} dev eth0`,
      `addr add ${ipv6} dev eth0 nodad`,
      'link set eth0 up',
      `route add default via ${gatewayIpv4}`,
      `route add default via ${gatewayIpv6}`,
    ]);
    const probe = stack.use(await startNamespaceProgram(path, './guest-probe.ts'));
    const owned = stack.move();
    return {
      slot,
      path,
      ask: (request) => probe.request<Outcome>(request),
      tcp: (host, port = 80, options = {}) => probe.request<Outcome>({ op: 'tcp', host, port, ...options }),
      udp: (host, port = 7, options = {}) => probe.request<Outcome>({ op: 'udp', host, port, ...options }),
      [Symbol.asyncDispose]: () => owned.disposeAsync(),
    };
  } catch (error) {
    await stack.disposeAsync();
    throw error;
  }
}
