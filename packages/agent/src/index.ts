export * from './agent.ts';
export { type AgentOptions, createAgent } from './client/create-agent.ts';
export * from './endpoint.ts';
export { createUnixSocketEndpoint, MAX_SOCKET_PATH, type UnixSocketEndpointOptions } from './unix-socket-endpoint.ts';
