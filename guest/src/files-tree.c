/* make-dir, rename and remove. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"
#include "protocol.gen.h"
#include "util.h"

/* Creates a directory that was missing and gives it its owner; the descriptor, or -1 with errno. */
static int create_level(int parent, const char *name, const struct owner *owner) {
  if (mkdirat(parent, name, 0700) != 0) return -1;
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  /* File systems without owners keep theirs. */
  if (fchown(fd, owner->uid, owner->gid) != 0 && errno != EPERM && errno != EOPNOTSUPP) return -1;
  if (fchmod(fd, owner->mode) != 0) return -1;
  return fd;
}

static int open_level(int parent, const char *name, const struct owner *owner, bool *created) {
  *created = false;
  for (int attempt = 0;; attempt++) {
    int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT) return fd;
    fd = create_level(parent, name, owner);
    *created = fd >= 0;
    /* Somebody else made it meanwhile, or it is a link to nowhere. */
    if (fd >= 0 || errno != EEXIST || attempt > 0) return fd;
  }
}

int files_make_path(const char *path, const struct owner *owner, bool *created) {
  char *copy = must_alloc(strlen(path) + 1);
  strcpy(copy, path);
  int directory = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  char *state = NULL;
  *created = false;
  for (char *name = strtok_r(copy, "/", &state); name != NULL && directory >= 0; name = strtok_r(NULL, "/", &state)) {
    int next = open_level(directory, name, owner, created);
    int error = errno;
    close(directory);
    errno = error;
    directory = next;
  }
  int error = directory >= 0 ? 0 : errno;
  close_fd(&directory);
  free(copy);
  return error;
}

int files_make_parent(const char *path, const struct owner *owner) {
  const char *slash = strrchr(path, '/');
  char *parent = must_alloc(strlen(path) + 1);
  memcpy(parent, path, (size_t)(slash - path));
  bool created;
  int error = files_make_path(parent, owner, &created);
  free(parent);
  return error;
}

void files_make_dir(struct reader *request) {
  char *path = take_string(request);
  struct owner owner = files_take_owner(request);
  owner.mode = take_u32(request) & 07777;
  files_check_path(path);
  bool created;
  int error = files_make_path(path, &owner, &created);
  if (error != 0) files_fail_errno(error, path);
  struct buffer body = {0};
  put_u8(&body, created);
  files_finish(&body);
}

void files_rename(struct reader *request) {
  char *source = take_string(request);
  char *destination = take_string(request);
  struct owner owner = files_take_owner(request);
  files_check_path(source);
  files_check_path(destination);
  struct stat status;
  if (lstat(source, &status) != 0) files_fail_errno(errno, source);
  int error = files_make_parent(destination, &owner);
  if (error != 0) files_fail_errno(error, destination);
  if (rename(source, destination) != 0) files_fail_errno(errno, destination);
  files_finish_empty();
}

/* --- remove ----------------------------------------------------------------------------------------------------- */

/* As the kernel writes it; readdir(3) would need a stream per level. */
struct kernel_entry {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

/* Directories being emptied, from the root of the removal down to the present one. */
struct descent {
  int *levels;
  size_t depth;
  size_t capacity;
};

static void descend(struct descent *descent, int fd, const char *path) {
  if (fd < 0) files_fail_errno(errno, path);
  if (descent->depth == descent->capacity) {
    descent->capacity = descent->capacity > 0 ? descent->capacity * 2 : 64;
    descent->levels = must_realloc(descent->levels, descent->capacity * sizeof *descent->levels);
  }
  descent->levels[descent->depth++] = fd;
}

/* Removes a name that is not a directory with something in it; true when it is one, so that it must be emptied first. */
static bool must_descend(int directory, const char *name, uint8_t type, const char *path) {
  if (type != DT_DIR) {
    if (unlinkat(directory, name, 0) == 0 || errno == ENOENT) return false;
    if (errno != EISDIR && errno != EPERM) files_fail_errno(errno, path);
  }
  if (unlinkat(directory, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return false;
  if (errno != ENOTEMPTY && errno != EEXIST) files_fail_errno(errno, path);
  return true;
}

/* Removes entries of the last level until one must be emptied first (which becomes the last level), or none is left. */
static bool empty_level(struct descent *descent, const char *path) {
  static _Alignas(struct kernel_entry) char batch[32768];
  int directory = descent->levels[descent->depth - 1];
  /* From the start each time: what was seen before is removed. */
  lseek(directory, 0, SEEK_SET);
  for (;;) {
    long length = syscall(SYS_getdents64, directory, batch, sizeof batch);
    if (length < 0) files_fail_errno(errno, path);
    if (length == 0) return true;
    for (long at = 0; at < length;) {
      const struct kernel_entry *entry = (const struct kernel_entry *)(const void *)(batch + at);
      const char *name = batch + at + offsetof(struct kernel_entry, name);
      at += entry->length;
      if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
      if (!must_descend(directory, name, entry->type, path)) continue;
      descend(descent, openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), path);
      return false;
    }
  }
}

static bool remove_tree(const char *path) {
  struct descent descent = {0};
  if (unlink(path) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  for (;;) {
    if (rmdir(path) == 0 || errno == ENOENT) return true;
    if (errno != ENOTEMPTY && errno != EEXIST) files_fail_errno(errno, path);
    descend(&descent, open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), path);
    while (descent.depth > 0) {
      if (empty_level(&descent, path)) close(descent.levels[--descent.depth]);
    }
  }
}

void files_remove(struct reader *request) {
  char *path = take_string(request);
  files_check_path(path);
  struct buffer body = {0};
  put_u8(&body, remove_tree(path));
  files_finish(&body);
}
