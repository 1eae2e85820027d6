/** What a sandbox may reach; evaluation order and always-denied ranges: contract agentenv.md section 13. */
export interface NetworkPolicy {
  /** undefined = never set (allow). */
  readonly allowInternetAccess: boolean | undefined;
  /** IP or CIDR, v4 or v6, canonical. */
  readonly allowOut: readonly string[];
  readonly denyOut: readonly string[];
  /** false: ingress to ports other than envd needs the traffic token. */
  readonly allowPublicTraffic: boolean;
  readonly maskRequestHost: string | undefined;
}

export const DEFAULT_NETWORK_POLICY: NetworkPolicy = {
  allowInternetAccess: undefined,
  allowOut: [],
  denyOut: [],
  allowPublicTraffic: true,
  maskRequestHost: undefined,
};
