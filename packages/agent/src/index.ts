export * from './agent.ts';
export * from './endpoint.ts';
