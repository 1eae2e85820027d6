export * from './clock.ts';
export * from './errors.ts';
export * from './ids.ts';
export * from './log.ts';
export * from './manifest.ts';
export * from './network-policy.ts';
export * from './sandbox.ts';
export * from './state-machine.ts';
