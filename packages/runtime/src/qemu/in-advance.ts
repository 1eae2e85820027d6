import { DEFAULT_NETWORK_POLICY, type NetworkPolicy } from '@agentenv/core';

/** What was made in advance could not be used, and nobody was told of its slot: something else can take its place. */
export class UnusableInAdvance extends Error {}

/** True for the policy under which slots of nobody are made. */
export function isDefaultPolicy(policy: NetworkPolicy): boolean {
  return JSON.stringify(policy) === JSON.stringify(DEFAULT_NETWORK_POLICY);
}
