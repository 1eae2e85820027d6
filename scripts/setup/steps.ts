import { guestStep, initramfsStep } from './guest-step.ts';
import { kernelStep } from './kernel/step.ts';
import { npmStep } from './npm-step.ts';
import { debianStep } from './rootfs/debian-step.ts';
import { imageStep } from './rootfs/image-step.ts';
import type { SetupStep } from './step.ts';

/** Set-up after Debian packages and the toolchain, in order; a step may use the results of those before it. */
export function setupSteps(): readonly SetupStep[] {
  return [npmStep(), guestStep(), kernelStep(), initramfsStep(), debianStep(), imageStep()];
}
