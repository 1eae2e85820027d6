export * from './activation.ts';
export * from './artifacts.ts';
export * from './backend.ts';
export * from './fake/index.ts';
export * from './fingerprint.ts';
export * from './network/addressing.ts';
export * from './network/slot.ts';
