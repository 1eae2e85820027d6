export * from './ledger.ts';
export * from './sqlite-ledger.ts';
