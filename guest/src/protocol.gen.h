/* Generated from guest/PROTOCOL.md by scripts/generate-protocol.ts; do not edit. */
#ifndef AENV_PROTOCOL_GEN_H
#define AENV_PROTOCOL_GEN_H

/* Limits, bytes */
#define MAX_DATA 65536u /* largest DATA payload; 32768 is the usual size */
#define MAX_CONTROL 1048576u /* largest payload of any other frame */
#define STREAM_WINDOW 262144u /* credit a receiver grants a bulk stream at its start */
#define INTERACTIVE_WINDOW 65536u /* the same for process output; may grow to STREAM_WINDOW */
#define CHANNEL_WINDOW 1048576u /* credit for all DATA of the guest together */

/* Frame types; payload in the comment */
#define FRAME_DATA 0u /* raw bytes */
#define FRAME_EOF 1u /* empty */
#define FRAME_CREDIT 2u /* u32 bytes */
#define FRAME_RESET 3u /* u32 code */
#define FRAME_REQUEST 4u /* u16 op, u32 deadlineMs, body */
#define FRAME_RESPONSE 5u /* u32 status, body */
#define FRAME_EVENT 6u /* u16 kind, body */

/* Flags, bits */
#define SPAWN_PTY 1u /* a terminal instead of pipes */
#define SPAWN_STDIN 2u /* keep stdin open until EOF on N+1; without it stdin is /dev/null */
#define READ_SPECIAL 1u /* allow FIFOs, sockets, devices */
#define WATCH_RECURSIVE 1u /* new directories are added before their contents are reported */
#define STDOUT_ENDED 256u /* its EOF has been sent, perhaps in a former epoch: no other will come */
#define STDERR_ENDED 512u /* the same for stderr */

/* Status codes of a RESPONSE */
#define STATUS_OK 0u /* done */
#define STATUS_INVALID 1u /* bad argument, or the wrong kind of stream */
#define STATUS_NOT_FOUND 2u /* no such path, process or user-visible object */
#define STATUS_EXISTS 3u /* already there */
#define STATUS_NOT_DIRECTORY 4u /* a directory was needed */
#define STATUS_IS_DIRECTORY 5u /* a file was needed */
#define STATUS_NOT_REGULAR 6u /* a FIFO, socket or device, refused */
#define STATUS_NO_SPACE 7u /* no blocks or inodes left */
#define STATUS_PERMISSION 8u /* refused by the kernel */
#define STATUS_UNKNOWN_USER 9u /* not in passwd */
#define STATUS_BAD_CWD 10u /* the working directory does not exist */
#define STATUS_EXEC_FAILED 11u /* the program could not be started */
#define STATUS_DEADLINE 12u /* the request's own deadline passed */
#define STATUS_LIMIT 13u /* too many or too large */
#define STATUS_CANCELED 14u /* reset, resynced or a new generation */
#define STATUS_REFUSED 15u /* nothing listens on the port */
#define STATUS_IO 16u /* any other errno */
#define STATUS_PROTOCOL 17u /* the body does not match its layout */
#define STATUS_UNSUPPORTED 18u /* the operation is not known to this agent */

/* Format strings: b u8, w u16, u u32, q u64, i i32, l i64, ? bool, s str, y bytes, k key, [...] list of what is inside. */

/* Structs in lists */
#define STRUCT_FILE_FORMAT "suy" /* path:str mode:u32 content:bytes */
#define STRUCT_PROCESS_FORMAT "uusyu?qq?iu" /* id:u32 pid:u32 tag:str config:bytes flags:u32 stdinOpen:bool stdoutSent:u64 stderrSent:u64 exited:bool exitCode:i32 exitSignal:u32 */
#define STRUCT_ENTRY_FORMAT "suquuusslsuuq[sy]" /* path:str type:u32 size:u64 mode:u32 uid:u32 gid:u32 owner:str group:str mtimeNs:i64 linkTarget:str targetType:u32 targetMode:u32 inode:u64 xattrs:list:xattr */
#define STRUCT_XATTR_FORMAT "sy" /* name:str value:bytes */

/* Operations of a REQUEST */
#define OP_PING 1u
#define OP_PING_REQUEST_FORMAT "" /* empty */
#define OP_PING_RESPONSE_FORMAT "q" /* monotonicNs:u64 */
#define OP_ACTIVATE 2u
#define OP_ACTIVATE_REQUEST_FORMAT "ks?qys[suy]" /* key:key generation:str resetStreams:bool wallNs:u64 entropy:bytes hostname:str files:list:file */
#define OP_ACTIVATE_RESPONSE_FORMAT "q" /* wallNs:u64 */
#define OP_QUIESCE 3u
#define OP_QUIESCE_REQUEST_FORMAT "u" /* leaseMs:u32 */
#define OP_QUIESCE_RESPONSE_FORMAT "uq" /* processes:u32 frozenUs:u64 */
#define OP_SET_CLOCK 4u
#define OP_SET_CLOCK_REQUEST_FORMAT "q" /* wallNs:u64 */
#define OP_SET_CLOCK_RESPONSE_FORMAT "l" /* skewNs:i64 */
#define OP_ADD_ENTROPY 5u
#define OP_ADD_ENTROPY_REQUEST_FORMAT "y" /* entropy:bytes */
#define OP_ADD_ENTROPY_RESPONSE_FORMAT "" /* empty */
#define OP_METRICS 6u
#define OP_METRICS_REQUEST_FORMAT "" /* empty */
#define OP_METRICS_RESPONSE_FORMAT "uuqqqqqq" /* cpuCount:u32 cpuUsedPct:u32 memTotal:u64 memUsed:u64 memCache:u64 diskTotal:u64 diskUsed:u64 agentRss:u64 */
#define OP_SETTLE 7u
#define OP_SETTLE_REQUEST_FORMAT "u" /* leaseMs:u32 */
#define OP_SETTLE_RESPONSE_FORMAT "uq" /* processes:u32 frozenUs:u64 */
#define OP_SPAWN 10u
#define OP_SPAWN_REQUEST_FORMAT "s[s][s]ssuwwsyq" /* user:str argv:list<str> env:list<str> cwd:str defaultCwd:str flags:u32 cols:u16 rows:u16 tag:str config:bytes killAfterMs:u64 */
#define OP_SPAWN_RESPONSE_FORMAT "uuu" /* pid:u32 uid:u32 gid:u32 */
#define OP_SIGNAL 11u
#define OP_SIGNAL_REQUEST_FORMAT "uu" /* process:u32 signal:u32 */
#define OP_SIGNAL_RESPONSE_FORMAT "" /* empty */
#define OP_RESIZE 12u
#define OP_RESIZE_REQUEST_FORMAT "uww" /* process:u32 cols:u16 rows:u16 */
#define OP_RESIZE_RESPONSE_FORMAT "" /* empty */
#define OP_LIST_PROCESSES 13u
#define OP_LIST_PROCESSES_REQUEST_FORMAT "" /* empty */
#define OP_LIST_PROCESSES_RESPONSE_FORMAT "[uusyu?qq?iu]" /* processes:list:process */
#define OP_LOOKUP_USER 20u
#define OP_LOOKUP_USER_REQUEST_FORMAT "s" /* user:str */
#define OP_LOOKUP_USER_RESPONSE_FORMAT "uusss[u]" /* uid:u32 gid:u32 name:str home:str shell:str groups:list<u32> */
#define OP_STAT 21u
#define OP_STAT_REQUEST_FORMAT "s" /* path:str */
#define OP_STAT_RESPONSE_FORMAT "[suquuusslsuuq[sy]]" /* entry:list:entry */
#define OP_LIST_DIR 22u
#define OP_LIST_DIR_REQUEST_FORMAT "suuy" /* path:str depth:u32 max:u32 after:bytes */
#define OP_LIST_DIR_RESPONSE_FORMAT "[suquuusslsuuq[sy]]y" /* entries:list:entry next:bytes */
#define OP_MAKE_DIR 23u
#define OP_MAKE_DIR_REQUEST_FORMAT "suuu" /* path:str uid:u32 gid:u32 mode:u32 */
#define OP_MAKE_DIR_RESPONSE_FORMAT "?" /* created:bool */
#define OP_RENAME 24u
#define OP_RENAME_REQUEST_FORMAT "ssuu" /* source:str destination:str uid:u32 gid:u32 */
#define OP_RENAME_RESPONSE_FORMAT "" /* empty */
#define OP_REMOVE 25u
#define OP_REMOVE_REQUEST_FORMAT "s" /* path:str */
#define OP_REMOVE_RESPONSE_FORMAT "?" /* removed:bool */
#define OP_READ_FILE 26u
#define OP_READ_FILE_REQUEST_FORMAT "sqqu" /* path:str offset:u64 length:u64 flags:u32 */
#define OP_READ_FILE_RESPONSE_FORMAT "[suquuusslsuuq[sy]]" /* entry:list:entry */
#define OP_WRITE_FILE 27u
#define OP_WRITE_FILE_REQUEST_FORMAT "suuuu[sy]" /* path:str uid:u32 gid:u32 mode:u32 flags:u32 xattrs:list:xattr */
#define OP_WRITE_FILE_RESPONSE_FORMAT "q" /* size:u64 */
#define OP_COMPOSE_FILE 28u
#define OP_COMPOSE_FILE_REQUEST_FORMAT "[s]suuu" /* sources:list<str> destination:str uid:u32 gid:u32 mode:u32 */
#define OP_COMPOSE_FILE_RESPONSE_FORMAT "q" /* size:u64 */
#define OP_WATCH 30u
#define OP_WATCH_REQUEST_FORMAT "su" /* path:str flags:u32 */
#define OP_WATCH_RESPONSE_FORMAT "" /* empty */
#define OP_CONNECT_PORT 40u
#define OP_CONNECT_PORT_REQUEST_FORMAT "ws" /* port:u16 slotAddress:str */
#define OP_CONNECT_PORT_RESPONSE_FORMAT "s" /* address:str */
#define OP_LISTEN_PORT 41u
#define OP_LISTEN_PORT_REQUEST_FORMAT "w" /* port:u16 */
#define OP_LISTEN_PORT_RESPONSE_FORMAT "" /* empty */
#define OP_SOURCE 50u
#define OP_SOURCE_REQUEST_FORMAT "qu" /* bytes:u64 frame:u32 */
#define OP_SOURCE_RESPONSE_FORMAT "" /* empty */
#define OP_SINK 51u
#define OP_SINK_REQUEST_FORMAT "" /* empty */
#define OP_SINK_RESPONSE_FORMAT "q" /* bytes:u64 */

/* X(NAME, number, "name", request format, response format) for every operation */
#define PROTOCOL_OPERATIONS(X) \
  X(PING, 1u, "ping", OP_PING_REQUEST_FORMAT, OP_PING_RESPONSE_FORMAT) \
  X(ACTIVATE, 2u, "activate", OP_ACTIVATE_REQUEST_FORMAT, OP_ACTIVATE_RESPONSE_FORMAT) \
  X(QUIESCE, 3u, "quiesce", OP_QUIESCE_REQUEST_FORMAT, OP_QUIESCE_RESPONSE_FORMAT) \
  X(SET_CLOCK, 4u, "set-clock", OP_SET_CLOCK_REQUEST_FORMAT, OP_SET_CLOCK_RESPONSE_FORMAT) \
  X(ADD_ENTROPY, 5u, "add-entropy", OP_ADD_ENTROPY_REQUEST_FORMAT, OP_ADD_ENTROPY_RESPONSE_FORMAT) \
  X(METRICS, 6u, "metrics", OP_METRICS_REQUEST_FORMAT, OP_METRICS_RESPONSE_FORMAT) \
  X(SETTLE, 7u, "settle", OP_SETTLE_REQUEST_FORMAT, OP_SETTLE_RESPONSE_FORMAT) \
  X(SPAWN, 10u, "spawn", OP_SPAWN_REQUEST_FORMAT, OP_SPAWN_RESPONSE_FORMAT) \
  X(SIGNAL, 11u, "signal", OP_SIGNAL_REQUEST_FORMAT, OP_SIGNAL_RESPONSE_FORMAT) \
  X(RESIZE, 12u, "resize", OP_RESIZE_REQUEST_FORMAT, OP_RESIZE_RESPONSE_FORMAT) \
  X(LIST_PROCESSES, 13u, "list-processes", OP_LIST_PROCESSES_REQUEST_FORMAT, OP_LIST_PROCESSES_RESPONSE_FORMAT) \
  X(LOOKUP_USER, 20u, "lookup-user", OP_LOOKUP_USER_REQUEST_FORMAT, OP_LOOKUP_USER_RESPONSE_FORMAT) \
  X(STAT, 21u, "stat", OP_STAT_REQUEST_FORMAT, OP_STAT_RESPONSE_FORMAT) \
  X(LIST_DIR, 22u, "list-dir", OP_LIST_DIR_REQUEST_FORMAT, OP_LIST_DIR_RESPONSE_FORMAT) \
  X(MAKE_DIR, 23u, "make-dir", OP_MAKE_DIR_REQUEST_FORMAT, OP_MAKE_DIR_RESPONSE_FORMAT) \
  X(RENAME, 24u, "rename", OP_RENAME_REQUEST_FORMAT, OP_RENAME_RESPONSE_FORMAT) \
  X(REMOVE, 25u, "remove", OP_REMOVE_REQUEST_FORMAT, OP_REMOVE_RESPONSE_FORMAT) \
  X(READ_FILE, 26u, "read-file", OP_READ_FILE_REQUEST_FORMAT, OP_READ_FILE_RESPONSE_FORMAT) \
  X(WRITE_FILE, 27u, "write-file", OP_WRITE_FILE_REQUEST_FORMAT, OP_WRITE_FILE_RESPONSE_FORMAT) \
  X(COMPOSE_FILE, 28u, "compose-file", OP_COMPOSE_FILE_REQUEST_FORMAT, OP_COMPOSE_FILE_RESPONSE_FORMAT) \
  X(WATCH, 30u, "watch", OP_WATCH_REQUEST_FORMAT, OP_WATCH_RESPONSE_FORMAT) \
  X(CONNECT_PORT, 40u, "connect-port", OP_CONNECT_PORT_REQUEST_FORMAT, OP_CONNECT_PORT_RESPONSE_FORMAT) \
  X(LISTEN_PORT, 41u, "listen-port", OP_LISTEN_PORT_REQUEST_FORMAT, OP_LISTEN_PORT_RESPONSE_FORMAT) \
  X(SOURCE, 50u, "source", OP_SOURCE_REQUEST_FORMAT, OP_SOURCE_RESPONSE_FORMAT) \
  X(SINK, 51u, "sink", OP_SINK_REQUEST_FORMAT, OP_SINK_RESPONSE_FORMAT)

/* Kinds of an EVENT */
#define EVENT_EXIT 1u
#define EVENT_EXIT_FORMAT "iuuqq" /* code:i32 signal:u32 reason:u32 stdoutTotal:u64 stderrTotal:u64 */
#define EVENT_WATCH 2u
#define EVENT_WATCH_FORMAT "suu?" /* path:str mask:u32 cookie:u32 isDir:bool */
#define EVENT_ACCEPTED 3u
#define EVENT_ACCEPTED_FORMAT "uw" /* stream:u32 peerPort:u16 */

#endif
