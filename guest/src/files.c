#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dispatch.h"
#include "helper.h"
#include "protocol.gen.h"
#include "util.h"

void files_respond(const struct buffer *body) {
  struct buffer payload = {0};
  put_u32(&payload, STATUS_OK);
  buffer_append(&payload, buffer_head(body), buffer_length(body));
  helper_send(FILES_RESULT, buffer_head(&payload), buffer_length(&payload));
  buffer_free(&payload);
}

void files_finish(const struct buffer *body) {
  files_respond(body);
  _exit(STATUS_OK);
}

void files_finish_empty(void) {
  struct buffer nothing = {0};
  files_finish(&nothing);
}

void files_fail(uint32_t status, int error, const char *message) {
  struct buffer payload = {0};
  put_u32(&payload, status);
  put_u32(&payload, (uint32_t)error);
  put_string(&payload, message);
  helper_send(FILES_RESULT, buffer_head(&payload), buffer_length(&payload));
  _exit((int)status);
}

void files_fail_errno(int error, const char *path) { files_fail(status_of_errno(error), error, path); }

void files_check_path(const char *path) {
  if (path[0] != '/') files_fail(STATUS_INVALID, EINVAL, "the path must be absolute");
}

struct owner files_take_owner(struct reader *request) {
  struct owner owner = {.mode = 0755};
  owner.uid = take_u32(request);
  owner.gid = take_u32(request);
  return owner;
}

static void lookup_user(struct reader *request) {
  char *who = take_string(request);
  struct user_tables tables = user_tables_load();
  struct user user;
  if (!user_find(&tables, who, &user)) files_fail(STATUS_UNKNOWN_USER, 0, who);
  struct buffer body = {0};
  put_u32(&body, user.uid);
  put_u32(&body, user.gid);
  put_string(&body, user.name);
  put_string(&body, user.home);
  put_string(&body, user.shell);
  put_u32(&body, (uint32_t)user.group_count);
  for (size_t i = 0; i < user.group_count; i++) put_u32(&body, user.groups[i]);
  files_finish(&body);
}

static void remove_temporary(struct reader *request) {
  unlink(take_string(request));
  files_finish_empty();
}

/* Only the root: another file system may be served by a program that is frozen. */
static void sync_root(void) {
  int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || syncfs(fd) != 0) files_fail_errno(errno, "the root file system could not be written to its disk");
  files_finish_empty();
}

void files_run(void *context) {
  struct files_task *task = context;
  struct reader request = reader_of(task->body, task->length);
  task->ring.filled = HELPER_KEPT + FILES_FILLED;
  task->ring.drained = HELPER_KEPT + FILES_DRAINED;
  switch (task->op) {
    case OP_ACTIVATE: files_activate(&request); break;
    case OP_LOOKUP_USER: lookup_user(&request); break;
    case OP_STAT: files_stat(&request); break;
    case OP_LIST_DIR: files_list(&request); break;
    case OP_MAKE_DIR: files_make_dir(&request); break;
    case OP_RENAME: files_rename(&request); break;
    case OP_REMOVE: files_remove(&request); break;
    case OP_READ_FILE: files_read(&request, &task->ring); break;
    case OP_WRITE_FILE: files_write(&request, &task->ring); break;
    case OP_COMPOSE_FILE: files_compose(&request); break;
    case OP_INTERNAL_REMOVE: remove_temporary(&request); break;
    case OP_INTERNAL_SYNC: sync_root(); break;
    default: files_fail(STATUS_UNSUPPORTED, 0, "not a file operation");
  }
  files_fail(STATUS_IO, 0, "the operation did not answer");
}
