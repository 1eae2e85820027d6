export * from './capture-store.ts';
export * from './ledger.ts';
export * from './sqlite-ledger.ts';
