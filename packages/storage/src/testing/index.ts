export * from '../memory-ledger.ts';
export * from './ledger-contract.ts';
