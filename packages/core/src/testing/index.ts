export * from './fake-clock.ts';
export * from './seeded-random.ts';
