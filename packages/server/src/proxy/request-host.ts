/** Stands for the port in `maskRequestHost`. */
const PORT_PLACEHOLDER = /\$\{PORT\}/g;
/** A name or an address, perhaps with a port: what a `Host` header may hold. */
const HOST = /^(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?$/;
const MAX_LENGTH = 255;

/** The `Host` a service on `port` gets to see (contract e2b.md section 7). */
export function maskedHost(maskRequestHost: string, port: number): string {
  return maskRequestHost.replaceAll(PORT_PLACEHOLDER, String(port));
}

/** Whether that is a `Host` at all, whatever the port. */
export function isMaskRequestHost(text: string): boolean {
  return text.length <= MAX_LENGTH && HOST.test(maskedHost(text, 65_535));
}
