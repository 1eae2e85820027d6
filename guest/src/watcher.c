#define _GNU_SOURCE
#include "watcher.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "body.h"
#include "dispatch.h"
#include "helper.h"
#include "protocol.gen.h"
#include "util.h"
#include "watch-tree.h"

#define WATCHED                                                                                                \
  (IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | \
   IN_ONLYDIR | IN_EXCL_UNLINK)

/* Directories of one watch. */
#define MAX_DIRECTORIES 16384u
#define MAX_DEPTH 256
/* Names remembered to drop events that repeat what a scan reported. */
#define MAX_REPORTED 65536u
/* A directory that left without an arrival within this is gone, milliseconds. */
#define MOVE_WAIT_MS 20
/* Temporary files of write-file (files-stage.c). */
#define HIDDEN_PREFIX ".aenv-"

/* A name that a scan reported as created, whose own event may still be in the queue. */
struct reported {
  int descriptor;
  char *name;
};

struct watcher {
  int inotify;
  /* Of the watched directory. It is not held open, or as working directory: the kernel would never tell that it is gone. */
  char *path;
  bool recursive;
  bool limit_hit;
  struct tree tree;
  struct node *root;
  struct buffer out; /* messages to be sent */
  struct reported *reported;
  size_t reported_count;
  struct node *leaving; /* a directory that was moved from; perhaps it arrives elsewhere in the tree */
  uint32_t leaving_cookie;
};

static void scan(struct watcher *watcher, struct node *node, bool report, int depth);

static void fail(uint32_t status, int error, const char *message) {
  struct buffer payload = {0};
  put_u32(&payload, status);
  put_u32(&payload, (uint32_t)error);
  put_string(&payload, message);
  helper_send(WATCHER_RESULT, buffer_head(&payload), buffer_length(&payload));
  _exit(1);
}

static void flush(struct watcher *watcher) {
  if (write_all(HELPER_CONTROL, buffer_head(&watcher->out), buffer_length(&watcher->out)) != 0) _exit(1);
  buffer_clear(&watcher->out);
}

static void emit(struct watcher *watcher, const struct node *node, const char *name, uint32_t mask, uint32_t cookie) {
  struct buffer path = {0};
  tree_path(&path, node, name);
  put_u8(&watcher->out, WATCHER_EVENT);
  put_u32(&watcher->out, (uint32_t)(4 + buffer_length(&path) + 4 + 4 + 1));
  put_bytes(&watcher->out, buffer_head(&path), buffer_length(&path));
  put_u32(&watcher->out, mask & ~(uint32_t)IN_ISDIR);
  put_u32(&watcher->out, cookie);
  put_u8(&watcher->out, (mask & IN_ISDIR) != 0);
  buffer_free(&path);
  if (buffer_length(&watcher->out) > 32768) flush(watcher);
}

/* --- what a scan reported ---------------------------------------------------------------------------------------- */

static void forget_reported(struct watcher *watcher) {
  while (watcher->reported_count > 0) free(watcher->reported[--watcher->reported_count].name);
}

static void note_reported(struct watcher *watcher, int descriptor, const char *name) {
  if (watcher->reported_count == MAX_REPORTED) forget_reported(watcher);
  if (watcher->reported == NULL) watcher->reported = must_alloc(MAX_REPORTED * sizeof *watcher->reported);
  struct reported *reported = &watcher->reported[watcher->reported_count++];
  reported->descriptor = descriptor;
  reported->name = must_alloc(strlen(name) + 1);
  strcpy(reported->name, name);
}

/* Takes a name out; whether it was in. */
static bool take_reported(struct watcher *watcher, int descriptor, const char *name) {
  for (size_t i = watcher->reported_count; i > 0; i--) {
    struct reported *reported = &watcher->reported[i - 1];
    if (reported->descriptor != descriptor || strcmp(reported->name, name) != 0) continue;
    free(reported->name);
    *reported = watcher->reported[--watcher->reported_count];
    return true;
  }
  return false;
}

/* --- the tree --------------------------------------------------------------------------------------------------- */

/* The full path of a name in a directory ("" = the directory itself), terminated. */
static void full_path(const struct watcher *watcher, struct buffer *into, const struct node *node, const char *name) {
  buffer_append(into, watcher->path, strlen(watcher->path));
  buffer_append(into, "/", 1);
  tree_path(into, node, name);
  buffer_append(into, "", 1);
}

/* Arms a directory; NULL when it is not there any more or cannot be watched. */
static struct node *arm(struct watcher *watcher, struct node *parent, const char *name) {
  if (watcher->tree.count >= MAX_DIRECTORIES) {
    watcher->limit_hit = true;
    return NULL;
  }
  struct buffer path = {0};
  struct node top = {0};
  full_path(watcher, &path, parent != NULL ? parent : &top, name);
  int descriptor = inotify_add_watch(watcher->inotify, (const char *)buffer_head(&path),
                                     WATCHED | (parent != NULL ? IN_DONT_FOLLOW : 0));
  buffer_free(&path);
  if (descriptor < 0) {
    if (errno == ENOSPC) watcher->limit_hit = true;
    return NULL;
  }
  return tree_put(&watcher->tree, descriptor, parent, name);
}

static void scan_name(struct watcher *watcher, struct node *node, const char *name, bool report, int depth) {
  struct buffer path = {0};
  struct stat status;
  full_path(watcher, &path, node, name);
  bool present = lstat((const char *)buffer_head(&path), &status) == 0;
  buffer_free(&path);
  if (!present) return;
  bool is_directory = S_ISDIR(status.st_mode);
  struct node *child = is_directory && watcher->recursive ? arm(watcher, node, name) : NULL;
  if (report) {
    note_reported(watcher, node->descriptor, name);
    emit(watcher, node, name, IN_CREATE | (is_directory ? IN_ISDIR : 0u), 0);
    if (S_ISREG(status.st_mode) && status.st_size > 0) emit(watcher, node, name, IN_MODIFY, 0);
  }
  if (child != NULL) scan(watcher, child, report, depth + 1);
}

/* Goes through a directory that is armed already, so that what is created from now on makes an event and what was created
 * before is found here: nothing is lost in between. */
static void scan(struct watcher *watcher, struct node *node, bool report, int depth) {
  if (depth > MAX_DEPTH) {
    watcher->limit_hit = true;
    return;
  }
  struct buffer path = {0};
  full_path(watcher, &path, node, "");
  DIR *directory = opendir((const char *)buffer_head(&path));
  buffer_free(&path);
  if (directory == NULL) return;
  struct dirent *entry;
  while ((entry = readdir(directory)) != NULL) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    if (strncmp(name, HIDDEN_PREFIX, sizeof HIDDEN_PREFIX - 1) == 0) continue;
    if (report || entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) scan_name(watcher, node, name, report, depth);
  }
  closedir(directory);
}

static void unwatch(void *context, int descriptor) { inotify_rm_watch(((struct watcher *)context)->inotify, descriptor); }

static void drop_leaving(struct watcher *watcher) {
  if (watcher->leaving == NULL) return;
  struct node *node = watcher->leaving;
  watcher->leaving = NULL;
  tree_remove_below(&watcher->tree, node, unwatch, watcher);
}

static void build(struct watcher *watcher) {
  watcher->root = arm(watcher, NULL, "");
  if (watcher->root != NULL && watcher->recursive) scan(watcher, watcher->root, false, 0);
}

/* Events were lost, directories perhaps too: says so, and builds the tree anew (armed directories keep their descriptors). */
static void overflow(struct watcher *watcher) {
  struct node nowhere = {0};
  emit(watcher, &nowhere, "", IN_Q_OVERFLOW, 0);
  watcher->leaving = NULL;
  forget_reported(watcher);
  tree_clear(&watcher->tree);
  build(watcher);
}

/* --- events ----------------------------------------------------------------------------------------------------- */

/* A directory appeared in the tree. It is armed before anybody hears of it. */
static void directory_appeared(struct watcher *watcher, struct node *node, const char *name, uint32_t mask, uint32_t cookie) {
  bool moved = (mask & IN_MOVED_TO) != 0 && watcher->leaving != NULL && watcher->leaving_cookie == cookie;
  struct node *child = NULL;
  if (moved) {
    tree_move(watcher->leaving, node, name);
    watcher->leaving = NULL;
  } else {
    child = arm(watcher, node, name);
  }
  emit(watcher, node, name, mask, cookie);
  if (child != NULL) scan(watcher, child, true, 0);
}

/* Whether a name is that of a file without one (O_TMPFILE), which the kernel calls "#" and its inode number in events about
 * owner and mode. */
static bool is_unnamed(const struct watcher *watcher, const struct node *node, const struct inotify_event *event) {
  const char *name = event->name;
  if (event->mask != IN_ATTRIB || name[0] != '#' || name[1 + strspn(name + 1, "0123456789")] != '\0') return false;
  struct buffer path = {0};
  struct stat status;
  full_path(watcher, &path, node, name);
  bool present = lstat((const char *)buffer_head(&path), &status) == 0;
  buffer_free(&path);
  return !present;
}

static void handle_child(struct watcher *watcher, struct node *node, const struct inotify_event *event) {
  const char *name = event->name;
  bool is_directory = (event->mask & IN_ISDIR) != 0;
  if (strncmp(name, HIDDEN_PREFIX, sizeof HIDDEN_PREFIX - 1) == 0 || is_unnamed(watcher, node, event)) return;
  if ((event->mask & IN_CREATE) != 0 && take_reported(watcher, event->wd, name)) return;
  if ((event->mask & (IN_DELETE | IN_MOVED_FROM)) != 0) take_reported(watcher, event->wd, name);
  if (is_directory && watcher->recursive && (event->mask & (IN_CREATE | IN_MOVED_TO)) != 0) {
    directory_appeared(watcher, node, name, event->mask, event->cookie);
    return;
  }
  if (is_directory && (event->mask & IN_MOVED_FROM) != 0) {
    drop_leaving(watcher);
    watcher->leaving = tree_find_child(&watcher->tree, node, name);
    watcher->leaving_cookie = event->cookie;
  }
  emit(watcher, node, name, event->mask, event->cookie);
}

static void handle(struct watcher *watcher, const struct inotify_event *event) {
  if ((event->mask & IN_Q_OVERFLOW) != 0) {
    overflow(watcher);
    return;
  }
  struct node *node = tree_find(&watcher->tree, event->wd);
  if (node == NULL) return;
  if ((event->mask & IN_IGNORED) != 0) {
    /* Kept as a parent of paths until the root goes; without a watch it makes no events. */
    if (node != watcher->root && node != watcher->leaving) tree_remove(&watcher->tree, node);
  } else if (event->len > 0) {
    handle_child(watcher, node, event);
  } else if (node == watcher->root) {
    /* Of directories further down the parent tells the same. */
    emit(watcher, node, "", event->mask, event->cookie);
  }
}

static void handle_batch(struct watcher *watcher, const char *batch, ssize_t length) {
  for (ssize_t at = 0; at < length;) {
    const struct inotify_event *event = (const struct inotify_event *)(const void *)(batch + at);
    handle(watcher, event);
    at += (ssize_t)(sizeof *event + event->len);
  }
  if (watcher->limit_hit) {
    struct node nowhere = {0};
    watcher->limit_hit = false;
    emit(watcher, &nowhere, "", IN_Q_OVERFLOW, 0);
  }
  flush(watcher);
}

/* After everything the kernel had: nothing of it can repeat a scan or complete a move any more. */
static void queue_empty(struct watcher *watcher) {
  struct pollfd more = {.fd = watcher->inotify, .events = POLLIN};
  if (watcher->leaving != NULL && poll(&more, 1, MOVE_WAIT_MS) == 1) return;
  drop_leaving(watcher);
  forget_reported(watcher);
}

void watcher_run(void *context) {
  static _Alignas(struct inotify_event) char batch[65536];
  const struct watcher_task *task = context;
  struct reader reader = reader_of(task->body, task->length);
  char *path = take_string(&reader);
  uint32_t flags = take_u32(&reader);
  if (path[0] != '/') fail(STATUS_INVALID, EINVAL, "the path must be absolute");
  struct watcher watcher = {.recursive = (flags & WATCH_RECURSIVE) != 0};
  watcher.path = realpath(path, NULL);
  if (watcher.path == NULL) fail(status_of_errno(errno), errno, path);
  watcher.inotify = inotify_init1(IN_CLOEXEC);
  if (watcher.inotify < 0) fail(STATUS_LIMIT, errno, "inotify");
  build(&watcher);
  if (watcher.limit_hit) fail(STATUS_LIMIT, ENOSPC, "too many directories");
  if (watcher.root == NULL) fail(status_of_errno(errno), errno, path);
  struct buffer armed = {0};
  put_u32(&armed, STATUS_OK);
  helper_send(WATCHER_RESULT, buffer_head(&armed), buffer_length(&armed));
  for (;;) {
    ssize_t length = read(watcher.inotify, batch, sizeof batch);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) _exit(1);
    handle_batch(&watcher, batch, length);
    int waiting = 0;
    ioctl(watcher.inotify, FIONREAD, &waiting);
    if (waiting == 0) queue_empty(&watcher);
  }
}
