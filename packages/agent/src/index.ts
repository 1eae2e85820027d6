export * from './agent.ts';
export { errorOfStatus, type GuestStatus } from './channel/status.ts';
export { type AgentOptions, createAgent } from './client/create-agent.ts';
export * from './endpoint.ts';
export { STATUS as GUEST_STATUS } from './generated/protocol.ts';
export { createUnixSocketEndpoint, MAX_SOCKET_PATH, type UnixSocketEndpointOptions } from './unix-socket-endpoint.ts';
