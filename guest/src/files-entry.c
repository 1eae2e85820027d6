/* stat, and the entries of every answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "files.h"
#include "protocol.gen.h"
#include "util.h"

#define XATTR_PREFIX "user.e2b."
#define XATTR_PREFIX_LENGTH (sizeof XATTR_PREFIX - 1)
#define XATTR_LIMIT 65536 /* the kernel's, for the list and for a value */

/* What an entry's attributes may take together, bytes: an entry must fit into a frame. */
#define MAX_ATTRIBUTES 131072u

#define TYPE_UNKNOWN 0u
#define TYPE_FILE 1u
#define TYPE_DIRECTORY 2u
#define TYPE_SYMLINK 3u
#define TYPE_FIFO 4u
#define TYPE_SOCKET 5u
#define TYPE_CHARACTER_DEVICE 6u
#define TYPE_BLOCK_DEVICE 7u

static uint32_t type_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return TYPE_FILE;
    case S_IFDIR: return TYPE_DIRECTORY;
    case S_IFLNK: return TYPE_SYMLINK;
    case S_IFIFO: return TYPE_FIFO;
    case S_IFSOCK: return TYPE_SOCKET;
    case S_IFCHR: return TYPE_CHARACTER_DEVICE;
    case S_IFBLK: return TYPE_BLOCK_DEVICE;
    default: return TYPE_UNKNOWN;
  }
}

/* Attributes of a path, or of an open file when `path` is NULL; file systems without any simply have none. */
static void put_xattrs(struct buffer *into, const char *path, int fd) {
  static char names[XATTR_LIMIT];
  static char value[XATTR_LIMIT];
  size_t count_at = buffer_length(into);
  uint32_t count = 0;
  put_u32(into, 0);
  ssize_t length = path != NULL ? llistxattr(path, names, sizeof names) : flistxattr(fd, names, sizeof names);
  for (ssize_t at = 0; at < length; at += (ssize_t)strlen(names + at) + 1) {
    const char *name = names + at;
    if (strncmp(name, XATTR_PREFIX, XATTR_PREFIX_LENGTH) != 0) continue;
    ssize_t size = path != NULL ? lgetxattr(path, name, value, sizeof value) : fgetxattr(fd, name, value, sizeof value);
    if (size < 0) continue;
    if (buffer_length(into) - count_at + strlen(name) + (size_t)size > MAX_ATTRIBUTES) break;
    put_string(into, name + XATTR_PREFIX_LENGTH);
    put_bytes(into, value, (size_t)size);
    count++;
  }
  patch_u32(into, count_at, count);
}

static void put_link(struct buffer *into, const char *path, mode_t mode) {
  char target[PATH_MAX];
  struct stat status;
  if (!S_ISLNK(mode)) {
    put_string(into, "");
    put_u32(into, TYPE_UNKNOWN);
    put_u32(into, 0);
  } else if (realpath(path, target) != NULL && stat(target, &status) == 0) {
    put_string(into, target);
    put_u32(into, type_of(status.st_mode));
    put_u32(into, status.st_mode & 07777);
  } else {
    put_string(into, path);
    put_u32(into, TYPE_UNKNOWN);
    put_u32(into, 0);
  }
}

/* The fields of an entry in the order of PROTOCOL.md. */
static void put_entry(struct buffer *into, const struct user_tables *tables, const char *path, const struct stat *status,
                      int fd) {
  char name[256];
  put_string(into, path);
  put_u32(into, type_of(status->st_mode));
  put_u64(into, (uint64_t)status->st_size);
  put_u32(into, status->st_mode & 07777);
  put_u32(into, status->st_uid);
  put_u32(into, status->st_gid);
  user_name_of(tables, status->st_uid, name, sizeof name);
  put_string(into, name);
  user_group_of(tables, status->st_gid, name, sizeof name);
  put_string(into, name);
  put_u64(into, (uint64_t)status->st_mtim.tv_sec * NS_PER_S + (uint64_t)status->st_mtim.tv_nsec);
  put_link(into, path, status->st_mode);
  put_u64(into, status->st_ino);
  if (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode)) {
    put_xattrs(into, fd < 0 ? path : NULL, fd);
  } else {
    put_u32(into, 0);
  }
}

void files_put_entry(struct buffer *into, const struct user_tables *tables, const char *path, const struct stat *status) {
  put_entry(into, tables, path, status, -1);
}

void files_put_open_entry(struct buffer *into, const struct user_tables *tables, const char *path, int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) files_fail_errno(errno, path);
  put_entry(into, tables, path, &status, fd);
}

void files_stat(struct reader *request) {
  char *path = take_string(request);
  files_check_path(path);
  struct stat status;
  if (lstat(path, &status) != 0) files_fail_errno(errno, path);
  struct user_tables tables = user_tables_load();
  struct buffer body = {0};
  put_u32(&body, 1);
  put_entry(&body, &tables, path, &status, -1);
  files_finish(&body);
}
