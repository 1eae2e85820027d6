import { extname } from 'node:path/posix';

const TEXT = 'text/plain; charset=utf-8';
const BINARY = 'application/octet-stream';
/** How much of a file decides whether it is text, bytes. */
const SNIFF_BYTES = 512;

const BY_EXTENSION: Readonly<Record<string, string>> = {
  '.avif': 'image/avif',
  '.bash': TEXT,
  '.bmp': 'image/bmp',
  '.c': TEXT,
  '.conf': TEXT,
  '.cpp': TEXT,
  '.css': 'text/css; charset=utf-8',
  '.csv': 'text/csv; charset=utf-8',
  '.gif': 'image/gif',
  '.go': TEXT,
  '.gz': 'application/gzip',
  '.h': TEXT,
  '.htm': 'text/html; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.ico': 'image/x-icon',
  '.ini': TEXT,
  '.java': TEXT,
  '.jpeg': 'image/jpeg',
  '.jpg': 'image/jpeg',
  '.js': 'text/javascript; charset=utf-8',
  '.json': 'application/json',
  '.jsonl': TEXT,
  '.log': TEXT,
  '.md': 'text/markdown; charset=utf-8',
  '.mjs': 'text/javascript; charset=utf-8',
  '.mp3': 'audio/mpeg',
  '.mp4': 'video/mp4',
  '.pdf': 'application/pdf',
  '.png': 'image/png',
  '.py': 'text/x-python; charset=utf-8',
  '.rs': TEXT,
  '.sh': TEXT,
  '.svg': 'image/svg+xml',
  '.tar': 'application/x-tar',
  '.toml': TEXT,
  '.ts': TEXT,
  '.txt': TEXT,
  '.wasm': 'application/wasm',
  '.wav': 'audio/wav',
  '.webm': 'video/webm',
  '.webp': 'image/webp',
  '.xml': 'text/xml; charset=utf-8',
  '.yaml': TEXT,
  '.yml': TEXT,
  '.zip': 'application/zip',
};

const COMPRESSIBLE = /^(?:text\/|application\/json|application\/wasm|image\/svg\+xml|image\/bmp)/;

/** The content type of a file by its extension, else by whether its first bytes look like text. */
export function mediaTypeOf(path: string, head: Uint8Array): string {
  return BY_EXTENSION[extname(path).toLowerCase()] ?? (looksLikeText(head) ? TEXT : BINARY);
}

/** Whether compressing this type saves more than it costs. */
export function isCompressible(mediaType: string): boolean {
  return COMPRESSIBLE.test(mediaType);
}

/** Text has no control characters except white space and escape. */
function looksLikeText(head: Uint8Array): boolean {
  return head.subarray(0, SNIFF_BYTES).every((byte) => byte >= 0x20 || (byte >= 0x08 && byte <= 0x0d) || byte === 0x1b);
}
