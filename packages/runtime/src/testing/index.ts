export { createExec } from '../exec.ts';
export * from './contract.ts';
export * from './fake-internet.ts';
export { runInGuest } from './guest-run.ts';
export * from './harness.ts';
export * from './kept-captures.ts';
export * from './namespace-program.ts';
export * from './qemu-world.ts';
export * from './slot-guest.ts';
