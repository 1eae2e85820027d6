import type { Activation, GuestFile } from '@agentenv/agent';
import type { LaunchPlan } from './backend.ts';
import type { GuestAddressing } from './network/slot.ts';

/** Of a generation that goes on as the sandbox it was: the secret alone. */
export function keptActivation({ channelKey, instanceId }: Pick<LaunchPlan, 'channelKey' | 'instanceId'>): Activation {
  // An empty host name leaves the guest's alone. Addresses are the same in every slot, so its resolver stays right.
  return { key: channelKey, generation: instanceId, resetStreams: true, hostname: '', files: [] };
}

/**
 * The first message of a generation, the same for every backend: identity files, name resolution, channel secret. A
 * generation that goes on as the sandbox it was gets the secret alone.
 * `/run/e2b/.E2B_*` are what the E2B tools look for (contract e2b.md section 6); the resolver is always the slot's
 * gateway (design section 7), which forwards to the host's.
 */
export function activationFor(
  plan: Pick<LaunchPlan, 'sandboxId' | 'instanceId' | 'templateId' | 'channelKey' | 'hostname' | 'identity'>,
  guest: GuestAddressing,
): Activation {
  const { hostname, sandboxId, templateId } = plan;
  const kept = keptActivation(plan);
  if (plan.identity === 'kept') return kept;
  const files: GuestFile[] = [
    { path: '/run/e2b/.E2B_SANDBOX', mode: 0o644, content: 'true' },
    { path: '/run/e2b/.E2B_SANDBOX_ID', mode: 0o644, content: sandboxId },
    { path: '/run/e2b/.E2B_TEMPLATE_ID', mode: 0o644, content: templateId },
    { path: '/etc/hostname', mode: 0o644, content: `${hostname}\n` },
    {
      path: '/etc/hosts',
      mode: 0o644,
      content: [
        '127.0.0.1 localhost',
        `127.0.1.1 ${hostname}`,
        '::1 localhost ip6-localhost ip6-loopback',
        'ff02::1 ip6-allnodes',
        'ff02::2 ip6-allrouters',
        '',
      ].join('\n'),
    },
    { path: '/etc/resolv.conf', mode: 0o644, content: `nameserver ${guest.gatewayIpv4}\n` },
  ];
  return { ...kept, hostname, files };
}
