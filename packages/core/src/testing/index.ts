export * from './fake-clock.ts';
export * from './lifecycle-model.ts';
export * from './real-clock.ts';
export * from './recording-log.ts';
export * from './sandbox-record.ts';
export * from './seeded-random.ts';
export * from './snapshot-record.ts';
