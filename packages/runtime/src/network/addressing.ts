import type { GuestAddressing } from './slot.ts';

/** What every guest sees, whatever slot it runs in (contract agentenv.md section 13, in-guest link 169.254.0.20/30). */
export const GUEST_ADDRESSING: GuestAddressing = {
  mac: '02:ae:00:00:00:02',
  ipv4: '169.254.0.22/30',
  ipv6: 'fd00:ae::2/64',
  gatewayIpv4: '169.254.0.21',
  gatewayIpv6: 'fd00:ae::1',
};
