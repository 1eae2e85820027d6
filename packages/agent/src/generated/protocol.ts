// Generated from guest/PROTOCOL.md by scripts/generate-protocol.ts; do not edit.

/** Limits, bytes. */
export const LIMITS = {
  /** largest DATA payload; 32768 is the usual size */
  MAX_DATA: 65536,
  /** largest payload of any other frame */
  MAX_CONTROL: 1048576,
  /** credit a receiver grants a bulk stream at its start */
  STREAM_WINDOW: 262144,
  /** the same for process output; may grow to STREAM_WINDOW */
  INTERACTIVE_WINDOW: 65536,
  /** credit for all DATA of the guest together */
  CHANNEL_WINDOW: 1048576,
} as const;

/** Frame types with their payload. */
export const FRAME = {
  /** raw bytes */
  DATA: 0,
  /** empty */
  EOF: 1,
  /** u32 bytes */
  CREDIT: 2,
  /** u32 code */
  RESET: 3,
  /** u16 op, u32 deadlineMs, body */
  REQUEST: 4,
  /** u32 status, body */
  RESPONSE: 5,
  /** u16 kind, body */
  EVENT: 6,
} as const;

/** Bits of the `flags` fields. */
export const FLAGS = {
  /** a terminal instead of pipes */
  SPAWN_PTY: 1,
  /** keep stdin open until EOF on N+1; without it stdin is /dev/null */
  SPAWN_STDIN: 2,
  /** allow FIFOs, sockets, devices */
  READ_SPECIAL: 1,
  /** new directories are added before their contents are reported */
  WATCH_RECURSIVE: 1,
  /** its EOF has been sent, perhaps in a former epoch: no other will come */
  STDOUT_ENDED: 256,
  /** the same for stderr */
  STDERR_ENDED: 512,
} as const;

/** Status codes of a RESPONSE. */
export const STATUS = {
  /** done */
  OK: 0,
  /** bad argument, or the wrong kind of stream */
  INVALID: 1,
  /** no such path, process or user-visible object */
  NOT_FOUND: 2,
  /** already there */
  EXISTS: 3,
  /** a directory was needed */
  NOT_DIRECTORY: 4,
  /** a file was needed */
  IS_DIRECTORY: 5,
  /** a FIFO, socket or device, refused */
  NOT_REGULAR: 6,
  /** no blocks or inodes left */
  NO_SPACE: 7,
  /** refused by the kernel */
  PERMISSION: 8,
  /** not in passwd */
  UNKNOWN_USER: 9,
  /** the working directory does not exist */
  BAD_CWD: 10,
  /** the program could not be started */
  EXEC_FAILED: 11,
  /** the request's own deadline passed */
  DEADLINE: 12,
  /** too many or too large */
  LIMIT: 13,
  /** reset, resynced or a new generation */
  CANCELED: 14,
  /** nothing listens on the port */
  REFUSED: 15,
  /** any other errno */
  IO: 16,
  /** the body does not match its layout */
  PROTOCOL: 17,
  /** the operation is not known to this agent */
  UNSUPPORTED: 18,
} as const;

/** Structs in lists: `[field, type]` in wire order. */
export const STRUCTS = {
  file: [['path', 'str'], ['mode', 'u32'], ['content', 'bytes']],
  process: [['id', 'u32'], ['pid', 'u32'], ['tag', 'str'], ['config', 'bytes'], ['flags', 'u32'], ['stdinOpen', 'bool'], ['stdoutSent', 'u64'], ['stderrSent', 'u64'], ['exited', 'bool'], ['exitCode', 'i32'], ['exitSignal', 'u32']],
  entry: [['path', 'str'], ['type', 'u32'], ['size', 'u64'], ['mode', 'u32'], ['uid', 'u32'], ['gid', 'u32'], ['owner', 'str'], ['group', 'str'], ['mtimeNs', 'i64'], ['linkTarget', 'str'], ['targetType', 'u32'], ['targetMode', 'u32'], ['inode', 'u64'], ['xattrs', 'list:xattr']],
  xattr: [['name', 'str'], ['value', 'bytes']],
} as const;

/** Operations of a REQUEST with the layouts of both bodies. */
export const OPERATIONS = {
  ping: {
    op: 1,
    request: [],
    response: [['monotonicNs', 'u64']],
  },
  activate: {
    op: 2,
    request: [['key', 'key'], ['generation', 'str'], ['resetStreams', 'bool'], ['wallNs', 'u64'], ['entropy', 'bytes'], ['hostname', 'str'], ['files', 'list:file']],
    response: [['wallNs', 'u64']],
  },
  quiesce: {
    op: 3,
    request: [['leaseMs', 'u32']],
    response: [['processes', 'u32'], ['frozenUs', 'u64']],
  },
  setClock: {
    op: 4,
    request: [['wallNs', 'u64']],
    response: [['skewNs', 'i64']],
  },
  addEntropy: {
    op: 5,
    request: [['entropy', 'bytes']],
    response: [],
  },
  metrics: {
    op: 6,
    request: [],
    response: [['cpuCount', 'u32'], ['cpuUsedPct', 'u32'], ['memTotal', 'u64'], ['memUsed', 'u64'], ['memCache', 'u64'], ['diskTotal', 'u64'], ['diskUsed', 'u64'], ['agentRss', 'u64']],
  },
  settle: {
    op: 7,
    request: [['leaseMs', 'u32']],
    response: [['processes', 'u32'], ['frozenUs', 'u64']],
  },
  spawn: {
    op: 10,
    request: [['user', 'str'], ['argv', 'list<str>'], ['env', 'list<str>'], ['cwd', 'str'], ['defaultCwd', 'str'], ['flags', 'u32'], ['cols', 'u16'], ['rows', 'u16'], ['tag', 'str'], ['config', 'bytes'], ['killAfterMs', 'u64']],
    response: [['pid', 'u32'], ['uid', 'u32'], ['gid', 'u32']],
  },
  signal: {
    op: 11,
    request: [['process', 'u32'], ['signal', 'u32']],
    response: [],
  },
  resize: {
    op: 12,
    request: [['process', 'u32'], ['cols', 'u16'], ['rows', 'u16']],
    response: [],
  },
  listProcesses: {
    op: 13,
    request: [],
    response: [['processes', 'list:process']],
  },
  lookupUser: {
    op: 20,
    request: [['user', 'str']],
    response: [['uid', 'u32'], ['gid', 'u32'], ['name', 'str'], ['home', 'str'], ['shell', 'str'], ['groups', 'list<u32>']],
  },
  stat: {
    op: 21,
    request: [['path', 'str']],
    response: [['entry', 'list:entry']],
  },
  listDir: {
    op: 22,
    request: [['path', 'str'], ['depth', 'u32'], ['max', 'u32'], ['after', 'bytes']],
    response: [['entries', 'list:entry'], ['next', 'bytes']],
  },
  makeDir: {
    op: 23,
    request: [['path', 'str'], ['uid', 'u32'], ['gid', 'u32'], ['mode', 'u32']],
    response: [['created', 'bool']],
  },
  rename: {
    op: 24,
    request: [['source', 'str'], ['destination', 'str'], ['uid', 'u32'], ['gid', 'u32']],
    response: [],
  },
  remove: {
    op: 25,
    request: [['path', 'str']],
    response: [['removed', 'bool']],
  },
  readFile: {
    op: 26,
    request: [['path', 'str'], ['offset', 'u64'], ['length', 'u64'], ['flags', 'u32']],
    response: [['entry', 'list:entry']],
  },
  writeFile: {
    op: 27,
    request: [['path', 'str'], ['uid', 'u32'], ['gid', 'u32'], ['mode', 'u32'], ['flags', 'u32'], ['xattrs', 'list:xattr']],
    response: [['size', 'u64']],
  },
  composeFile: {
    op: 28,
    request: [['sources', 'list<str>'], ['destination', 'str'], ['uid', 'u32'], ['gid', 'u32'], ['mode', 'u32']],
    response: [['size', 'u64']],
  },
  watch: {
    op: 30,
    request: [['path', 'str'], ['flags', 'u32']],
    response: [],
  },
  connectPort: {
    op: 40,
    request: [['port', 'u16'], ['slotAddress', 'str']],
    response: [['address', 'str']],
  },
  listenPort: {
    op: 41,
    request: [['port', 'u16']],
    response: [],
  },
  source: {
    op: 50,
    request: [['bytes', 'u64'], ['frame', 'u32']],
    response: [],
  },
  sink: {
    op: 51,
    request: [],
    response: [['bytes', 'u64']],
  },
} as const;

/** Kinds of an EVENT with the layout of its body. */
export const EVENTS = {
  exit: { kind: 1, body: [['code', 'i32'], ['signal', 'u32'], ['reason', 'u32'], ['stdoutTotal', 'u64'], ['stderrTotal', 'u64']] },
  watch: { kind: 2, body: [['path', 'str'], ['mask', 'u32'], ['cookie', 'u32'], ['isDir', 'bool']] },
  accepted: { kind: 3, body: [['stream', 'u32'], ['peerPort', 'u16']] },
} as const;
