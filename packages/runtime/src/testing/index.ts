export * from './contract.ts';
export * from './harness.ts';
