/** Names of the headers that cross our borders, lower-case (contract e2b.md sections 2, 7; agentenv.md section 15). */
export const HEADERS = {
  apiKey: 'x-api-key',
  accessToken: 'x-access-token',
  trafficAccessToken: 'e2b-traffic-access-token',
  e2bSandboxId: 'e2b-sandbox-id',
  e2bSandboxPort: 'e2b-sandbox-port',
  agentenvSandboxId: 'x-agentenv-sandbox-id',
  agentenvTargetPort: 'x-agentenv-target-port',
  requestId: 'x-request-id',
  nextToken: 'x-next-token',
  totalRunning: 'x-total-running',
  retryAfter: 'retry-after',
  keepalivePingInterval: 'keepalive-ping-interval',
  connectTimeoutMs: 'connect-timeout-ms',
} as const;

/** The port envd serves inside every sandbox. */
export const ENVD_PORT = 49983;

/** The envd version advertised to clients: the highest whose features all work (contract e2b.md section 11). */
export const ENVD_VERSION = '0.6.13';
