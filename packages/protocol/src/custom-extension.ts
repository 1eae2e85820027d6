export type { components, operations } from './generated/custom-extension.ts';
