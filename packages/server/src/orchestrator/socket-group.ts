import type { SocketGroup } from './orchestrator.ts';

type Member = Parameters<SocketGroup['add']>[0];

/** The sockets of one generation and the means to end them all. */
export interface OwnedSocketGroup extends SocketGroup {
  /** Resets every socket and, from now on, every one that is added: a client must see that its answer is not complete. */
  destroy(): void;
  readonly size: number;
}

function isResettable(socket: Member): socket is Member & { resetAndDestroy(): unknown } {
  return 'resetAndDestroy' in socket && typeof socket.resetAndDestroy === 'function';
}

/** A TCP socket is reset; anything else (TLS, a pipe, a response) knows best how to end itself. */
function end(socket: Member): void {
  if (isResettable(socket)) socket.resetAndDestroy();
  else socket.destroy();
}

export function createSocketGroup(): OwnedSocketGroup {
  const members = new Set<Member>();
  let destroyed = false;
  return {
    add(socket) {
      if (destroyed) {
        end(socket);
        return;
      }
      members.add(socket);
      socket.once('close', () => members.delete(socket));
    },
    destroy() {
      destroyed = true;
      for (const socket of members) end(socket);
      members.clear();
    },
    get size() {
      return members.size;
    },
  };
}
