/* The file primitives (PROTOCOL.md, "Files"), as run in a worker: everything here may wait for storage. */
#ifndef AENV_FILES_H
#define AENV_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "body.h"
#include "buffer.h"
#include "ring.h"
#include "user.h"

/* Messages to the agent. */
#define FILES_RESULT 'R'    /* the payload of the RESPONSE */
#define FILES_TEMPORARY 'T' /* path of a temporary file, to be removed when the worker dies by a signal */

/* Kept descriptors: the two events of the ring that carries the body. */
#define FILES_FILLED 0
#define FILES_DRAINED 1

/* The agent's own operations, beside those of PROTOCOL.md. */
#define OP_INTERNAL_REMOVE 0xf000u /* path: unlink a temporary file */
#define OP_INTERNAL_SYNC 0xf001u   /* -: write the root file system to its disk */

struct files_task {
  uint16_t op;
  const uint8_t *body; /* its layout was checked */
  size_t length;
  struct ring ring; /* of the body, for read-file and write-file */
};

/* The `run` of a helper; `context` is a struct files_task. */
void files_run(void *context);

/* --- shared by the primitives; each ends the worker --- */

__attribute__((noreturn)) void files_finish(const struct buffer *body);
__attribute__((noreturn)) void files_finish_empty(void);
__attribute__((noreturn)) void files_fail(uint32_t status, int error, const char *message);
/* Fails with the status of an errno. */
__attribute__((noreturn)) void files_fail_errno(int error, const char *path);
/* Sends the RESPONSE and goes on. */
void files_respond(const struct buffer *body);
/* Fails unless the path is absolute. */
void files_check_path(const char *path);

/* An owner and mode for what is created. */
struct owner {
  uid_t uid;
  gid_t gid;
  mode_t mode;
};
/* Reads `uid:u32 gid:u32`; the mode is that of parent directories. */
struct owner files_take_owner(struct reader *request);

/* files-entry.c */
void files_stat(struct reader *request);
/* Appends the entry of a path, by what lstat said of it, and of an open file. */
void files_put_entry(struct buffer *into, const struct user_tables *tables, const char *path, const struct stat *status);
void files_put_open_entry(struct buffer *into, const struct user_tables *tables, const char *path, int fd);

/* files-list.c */
void files_list(struct reader *request);

/* files-tree.c */
void files_make_dir(struct reader *request);
void files_rename(struct reader *request);
void files_remove(struct reader *request);
/* Creates what is missing of a directory; 0 or errno. `created` tells whether the last level is new. */
int files_make_path(const char *path, const struct owner *owner, bool *created);
/* The same for the parent of a path. */
int files_make_parent(const char *path, const struct owner *owner);

/* files-body.c */
void files_read(struct reader *request, struct ring *body);

/* files-stage.c */
void files_write(struct reader *request, struct ring *body);
void files_compose(struct reader *request);

/* files-activate.c */
void files_activate(struct reader *request);

/* Devices of the file systems in memory, as the agent finds them when it starts; 0 = none. */
struct memory_devices {
  dev_t run;
  dev_t shm;
};
void memory_devices_find(struct memory_devices *devices);
/* In the agent itself: writes the files of an activate when all of them exist in memory, as in every clone of a template,
 * where forking a worker would cost more than everything else. Otherwise false, perhaps after some: a worker is needed. */
bool files_activate_in_memory(struct reader *request, const struct memory_devices *devices);

#endif
