import { PlatformError, shorten } from '@agentenv/core';
import type { NodeReporter } from '../observability/node.ts';
import type { Handlers } from './operations.ts';

export interface Installation {
  /** Config `team.slug`. */
  readonly team: string;
  readonly apiKey: string;
  /** Undefined when observability is off: then there are no nodes to be seen (agentenv.md section 18). */
  readonly node: NodeReporter | undefined;
}

/** Handlers of what there is one of: the team and the host. */
export function createInstallationHandlers({
  team,
  apiKey,
  node,
}: Installation): Pick<Handlers, 'listTeams' | 'listNodes' | 'getNode'> {
  const shown = (clusterId: string | undefined): NodeReporter | undefined =>
    clusterId === undefined || clusterId === node?.identity.clusterId ? node : undefined;

  return {
    listTeams: () => ({ status: 200, body: [{ teamID: team, name: team, apiKey, isDefault: true }] }),

    listNodes: async ({ query }) => {
      const found = shown(query.clusterID);
      return { status: 200, body: found === undefined ? [] : [await found.describe()] };
    },

    getNode: async ({ path, query }) => {
      const found = shown(query.clusterID);
      if (found === undefined || path.nodeID !== found.identity.nodeId) {
        throw new PlatformError('not_found', `node '${shorten(path.nodeID, 64)}' not found`);
      }
      return { status: 200, body: { ...(await found.describe()), cachedBuilds: [] } };
    },
  };
}
