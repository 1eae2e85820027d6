export * from './errors.ts';
export * from './headers.ts';
