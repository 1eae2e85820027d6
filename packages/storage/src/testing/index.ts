export * from '../memory-captures.ts';
export * from '../memory-ledger.ts';
export * from './capture-store-contract.ts';
export * from './ledger-contract.ts';
export * from './snapshot-repository-contract.ts';
