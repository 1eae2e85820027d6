export { createQemuBackend, type QemuBackendOptions } from './backend.ts';
export type { AcceleratorChoice } from './probe.ts';
