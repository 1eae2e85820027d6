import type { Bench } from '../lib/row.ts';
import { channel } from './channel.ts';
import { controlPlane } from './control-plane.ts';
import { create, warmTrue } from './create.ts';
import { eventLoop } from './event-loop.ts';
import { extension } from './extension.ts';
import { list, terminal } from './guest-api.ts';
import { lifecycle } from './lifecycle.ts';
import { busy, clock } from './load.ts';
import { idle, memoryPerClone } from './memory.ts';
import { network } from './network.ts';
import { proxy } from './proxy.ts';
import { soak, streams } from './scale.ts';
import { stored } from './stored.ts';

/** Every bench in the order of the table. */
export const BENCHES: readonly Bench[] = [
  create,
  warmTrue,
  channel,
  list,
  terminal,
  proxy,
  network,
  extension,
  lifecycle,
  stored,
  eventLoop,
  memoryPerClone,
  idle,
  controlPlane,
  busy,
  clock,
  streams,
  soak,
];
