import type { Bench } from '../lib/row.ts';
import { controlPlane } from './control-plane.ts';

/** Every bench in the order of the table. */
export const BENCHES: readonly Bench[] = [controlPlane];
