export { limitUnreadBody } from './http/answer.ts';
export { resetConnection, resetSocket } from './http/open-answers.ts';
export * from './service.ts';
