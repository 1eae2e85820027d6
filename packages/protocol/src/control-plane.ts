export type { components, operations } from './generated/control-plane.ts';

/** Where the OpenAPI document of the control plane lies; the server parses it when it starts. */
export const CONTROL_PLANE_DOCUMENT = new URL('../openapi/control-plane.yaml', import.meta.url);
