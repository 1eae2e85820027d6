/* list-dir. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "protocol.gen.h"
#include "util.h"

/* Names of a directory that are kept at once, however many it has: sorting all would take the guest's memory. */
#define MAX_NAMES 4096u
/* What the RESPONSE needs beside the entries, bytes: its counts, and the cursor, which is a path and a last name. */
#define LIST_OVERHEAD (PATH_MAX + 256u + 64u)

/* One page of a listing. Which entries it begins behind, and which one comes last, is told by their paths below the root:
 * nothing has to be kept between two pages, and what is made or removed meanwhile does not shift the rest. */
struct listing {
  struct buffer body;
  struct user_tables tables;
  size_t root_length; /* of a path up to what is below the root */
  uint32_t count;
  uint32_t max; /* 0 = as many as fit */
  char *last;   /* path of the last entry */
  bool full;
};

static char *copy_of(const char *text, size_t length) {
  char *copy = must_alloc(length + 1);
  memcpy(copy, text, length);
  return copy;
}

/* The first names of a directory, bytewise: a heap with the last of them on top while they are collected. */
struct names {
  char *items[MAX_NAMES];
  size_t count;
  size_t limit;
  bool more; /* others come behind them */
};

static void swap(struct names *names, size_t left, size_t right) {
  char *item = names->items[left];
  names->items[left] = names->items[right];
  names->items[right] = item;
}

static void sink(struct names *names, size_t at) {
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= names->count) return;
    if (child + 1 < names->count && strcmp(names->items[child + 1], names->items[child]) > 0) child++;
    if (strcmp(names->items[at], names->items[child]) >= 0) return;
    swap(names, at, child);
    at = child;
  }
}

static void add_name(struct names *names, const char *name) {
  if (names->count < names->limit) {
    names->items[names->count] = copy_of(name, strlen(name));
    for (size_t at = names->count++; at > 0 && strcmp(names->items[at], names->items[(at - 1) / 2]) > 0; at = (at - 1) / 2) {
      swap(names, at, (at - 1) / 2);
    }
    return;
  }
  names->more = true;
  if (strcmp(name, names->items[0]) >= 0) return;
  free(names->items[0]);
  names->items[0] = copy_of(name, strlen(name));
  sink(names, 0);
}

static void sort_names(struct names *names) {
  size_t count = names->count;
  while (names->count > 1) {
    swap(names, 0, --names->count);
    sink(names, 0);
  }
  names->count = count;
}

/* Whether an entry that was read is just not there any more, or is no directory any more. Whatever else keeps it from
 * being looked at is told: a listing must not look whole when it is not. */
static bool is_gone(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

/* The first `limit` names of a directory behind `from`, or from it on, sorted. A directory that is gone has none. */
static struct names *read_names(int directory, const char *from, bool inclusive, size_t limit, const char *path) {
  struct names *names = must_alloc(sizeof *names);
  names->limit = limit;
  int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
  if (stream == NULL) {
    if (errno == ENOENT) return names;
    files_fail_errno(errno, path);
  }
  struct dirent *entry;
  while ((entry = readdir(stream)) != NULL) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    int order = strcmp(name, from);
    if (order > 0 || (order == 0 && inclusive)) add_name(names, name);
  }
  closedir(stream);
  sort_names(names);
  return names;
}

/* Adds an entry unless the page is full. */
static void add_entry(struct listing *listing, const char *path, const struct stat *status) {
  if (listing->max > 0 && listing->count == listing->max) {
    listing->full = true;
    return;
  }
  size_t before = buffer_length(&listing->body);
  files_put_entry(&listing->body, &listing->tables, path, status);
  if (buffer_length(&listing->body) > MAX_CONTROL - LIST_OVERHEAD) {
    listing->body.end = listing->body.start + before;
    listing->full = true;
    return;
  }
  listing->count++;
  free(listing->last);
  listing->last = copy_of(path, strlen(path));
}

static void list_level(struct listing *listing, int directory, const char *path, uint32_t depth, const char *after);

/* The entries of a directory, unless it is one no more. What no path reaches is left out: nobody could name it. */
static void list_child(struct listing *listing, int parent, const char *name, const char *path, uint32_t depth,
                       const char *after) {
  if (depth == 0 || strlen(path) >= PATH_MAX) return;
  int child = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (child < 0) {
    if (is_gone(errno)) return;
    files_fail_errno(errno, path);
  }
  list_level(listing, child, path, depth, after);
  close(child);
}

/* One name and what is below it. `after` is NULL, or, for the name that a former page ended in, the rest of its cursor:
 * that entry is not repeated. */
static void list_name(struct listing *listing, int directory, const char *path, const char *name, uint32_t depth,
                      const char *after) {
  size_t size = strlen(path) + strlen(name) + 2;
  char *full = must_alloc(size);
  snprintf(full, size, "%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", name);
  struct stat status;
  if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (!is_gone(errno)) files_fail_errno(errno, full);
    free(full);
    return;
  }
  if (after == NULL) add_entry(listing, full, &status);
  if (!listing->full && S_ISDIR(status.st_mode)) {
    list_child(listing, directory, name, full, depth - 1, after != NULL ? after : "");
  }
  free(full);
}

/* As many names as the page can have entries, and one by which to see that it is full. */
static size_t names_wanted(const struct listing *listing) {
  return listing->max > 0 ? minimum((size_t)listing->max - listing->count + 1, MAX_NAMES) : MAX_NAMES;
}

/* The entries behind the cursor `after`, names with slashes in between; "" = all of them. */
static void list_level(struct listing *listing, int directory, const char *path, uint32_t depth, const char *after) {
  size_t length = strcspn(after, "/");
  char *from = copy_of(after, length);
  bool passed = length > 0; /* `from` is the name that a former page ended in */
  const char *rest = after[length] == '/' ? after + length + 1 : "";
  for (bool more = true; more && !listing->full;) {
    struct names *names = read_names(directory, from, passed, names_wanted(listing), path);
    for (size_t i = 0; i < names->count && !listing->full; i++) {
      passed = passed && strcmp(names->items[i], from) == 0;
      list_name(listing, directory, path, names->items[i], depth, passed ? rest : NULL);
    }
    more = names->more;
    free(from);
    from = names->count > 0 ? copy_of(names->items[names->count - 1], strlen(names->items[names->count - 1])) : NULL;
    passed = false;
    for (size_t i = 0; i < names->count; i++) free(names->items[i]);
    free(names);
  }
  free(from);
}

void files_list(struct reader *request) {
  char *path = take_string(request);
  uint32_t depth = take_u32(request);
  struct listing listing = {0};
  listing.max = take_u32(request);
  struct span after = take_span(request);
  files_check_path(path);
  int directory = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
  if (directory < 0) files_fail_errno(errno, path);
  listing.tables = user_tables_load();
  listing.root_length = strlen(path) + (path[strlen(path) - 1] == '/' ? 0 : 1);
  put_u32(&listing.body, 0);
  list_level(&listing, directory, path, depth > 0 ? depth : 1,
             after.length > 0 ? copy_of((const char *)after.data, after.length) : "");
  patch_u32(&listing.body, 0, listing.count);
  const char *next = listing.full && listing.last != NULL ? listing.last + listing.root_length : "";
  put_bytes(&listing.body, next, strlen(next));
  files_finish(&listing.body);
}
