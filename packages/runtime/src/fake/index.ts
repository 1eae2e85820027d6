export * from './artifacts.ts';
export * from './backend.ts';
export type { Fault, FaultEffect, FaultPoint } from './faults.ts';
export type { FakeGuest } from './guest.ts';
export * from './world.ts';
