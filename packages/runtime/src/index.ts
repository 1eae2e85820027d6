export * from './backend.ts';
export * from './network/slot.ts';
