/* stat and list-dir. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "files.h"
#include "protocol.gen.h"
#include "util.h"

#define XATTR_PREFIX "user.e2b."
#define XATTR_PREFIX_LENGTH (sizeof XATTR_PREFIX - 1)
#define XATTR_LIMIT 65536 /* the kernel's, for the list and for a value */

#define TYPE_OTHER 0u
#define TYPE_FILE 1u
#define TYPE_DIRECTORY 2u
#define TYPE_SYMLINK 3u

/* A directory with more names than this is refused: sorting them would take the guest's memory. */
#define MAX_NAMES (1u << 20)
/* What the RESPONSE needs beside the entries, bytes. */
#define LIST_OVERHEAD 64u
/* Each level keeps a descriptor. */
#define MAX_DEPTH 512u

static uint32_t type_of(mode_t mode) {
  if (S_ISREG(mode)) return TYPE_FILE;
  if (S_ISDIR(mode)) return TYPE_DIRECTORY;
  if (S_ISLNK(mode)) return TYPE_SYMLINK;
  return TYPE_OTHER;
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
    put_u32(into, TYPE_OTHER);
    put_u32(into, 0);
  } else if (realpath(path, target) != NULL && stat(target, &status) == 0) {
    put_string(into, target);
    put_u32(into, type_of(status.st_mode));
    put_u32(into, status.st_mode & 07777);
  } else {
    put_string(into, path);
    put_u32(into, TYPE_OTHER);
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

struct listing {
  struct buffer body;
  struct user_tables tables;
  uint32_t count;
  uint32_t max;
  bool truncated;
};

static int by_name(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* All names of a directory, sorted bytewise. Takes the descriptor over. */
static char **read_names(int fd, size_t *count, const char *path) {
  DIR *directory = fdopendir(fd);
  if (directory == NULL) files_fail_errno(errno, path);
  char **names = NULL;
  size_t capacity = 0;
  *count = 0;
  struct dirent *entry;
  while ((entry = readdir(directory)) != NULL) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (*count == MAX_NAMES) files_fail(STATUS_LIMIT, 0, "too many names in one directory");
    if (*count == capacity) {
      capacity = capacity > 0 ? capacity * 2 : 64;
      names = must_realloc(names, capacity * sizeof *names);
    }
    names[*count] = must_alloc(strlen(entry->d_name) + 1);
    strcpy(names[(*count)++], entry->d_name);
  }
  closedir(directory);
  if (*count > 0) qsort(names, *count, sizeof *names, by_name);
  return names;
}

static void list_level(struct listing *listing, int directory, const char *path, uint32_t depth);

/* One name and, if it is a directory and depth is left, what is in it. */
static void list_name(struct listing *listing, int directory, const char *path, const char *name, uint32_t depth) {
  struct stat status;
  if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return; /* gone meanwhile */
  size_t size = strlen(path) + strlen(name) + 2;
  char *full = must_alloc(size);
  snprintf(full, size, "%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", name);
  size_t before = buffer_length(&listing->body);
  put_entry(&listing->body, &listing->tables, full, &status, -1);
  if (buffer_length(&listing->body) > MAX_CONTROL - LIST_OVERHEAD) {
    listing->body.end = listing->body.start + before;
    listing->truncated = true;
  } else {
    listing->count++;
    int child = S_ISDIR(status.st_mode) && depth > 1
                    ? openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                    : -1;
    if (child >= 0) {
      list_level(listing, child, full, depth - 1);
      close(child);
    }
  }
  free(full);
}

static void list_level(struct listing *listing, int directory, const char *path, uint32_t depth) {
  size_t count;
  int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) files_fail_errno(errno, path);
  char **names = read_names(copy, &count, path);
  for (size_t i = 0; i < count; i++) {
    if (listing->count == listing->max) listing->truncated = true;
    if (!listing->truncated) list_name(listing, directory, path, names[i], depth);
    free(names[i]);
  }
  free(names);
}

void files_list(struct reader *request) {
  char *path = take_string(request);
  uint32_t depth = take_u32(request);
  struct listing listing = {0};
  listing.max = take_u32(request);
  files_check_path(path);
  int directory = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
  if (directory < 0) files_fail_errno(errno, path);
  listing.tables = user_tables_load();
  put_u32(&listing.body, 0);
  list_level(&listing, directory, path, minimum(depth > 0 ? depth : 1, MAX_DEPTH));
  patch_u32(&listing.body, 0, listing.count);
  put_u8(&listing.body, listing.truncated);
  files_finish(&listing.body);
}
