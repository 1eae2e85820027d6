export * from './capture-files.ts';
export * from './capture-store.ts';
export * from './ledger.ts';
export * from './snapshot-repository.ts';
export * from './sqlite-ledger.ts';
