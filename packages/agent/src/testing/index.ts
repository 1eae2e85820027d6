export { type BuildGuestOptions, buildGuest } from './build-guest.ts';
export { type NativeGuest, type NativeGuestOptions, startNativeGuest } from './native-guest.ts';
export { rootProcess } from './root-process.ts';
export {
  connectScriptedAgent,
  createScriptedGuest,
  type HostFrame,
  type HostRequest,
  type ScriptedAgentOptions,
  type ScriptedGuest,
} from './scripted-guest.ts';
export { testClock } from './test-clock.ts';
