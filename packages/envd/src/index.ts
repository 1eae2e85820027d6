export { closeAfterAnswer, limitUnreadBody } from './http/linger.ts';
export { resetConnection, resetSocket } from './http/open-answers.ts';
export { createStrictServer, endWithError, headFault, refuseRequest } from './http/strict-server.ts';
export * from './service.ts';
