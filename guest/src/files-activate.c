/* The files of an activate: identity of the sandbox, names, resolver. Written while the user processes are still frozen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "protocol.gen.h"
#include "util.h"

/* Opens the file itself; whatever else has its name (a link to a resolver's file, a FIFO) makes way. */
static int open_plain(const char *path, mode_t mode) {
  for (int attempt = 0;; attempt++) {
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    struct stat status;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) return fd;
    int error = fd >= 0 ? ENXIO : errno;
    close_fd(&fd);
    if (attempt > 0 || (error != ELOOP && error != ENXIO) || unlink(path) != 0) {
      errno = error;
      return -1;
    }
  }
}

/* A resumed sandbox has the same files already: nothing is written, so nothing gets dirty and a full disk does not matter. */
static bool has_content(int fd, const struct span *content) {
  struct stat status;
  if (fstat(fd, &status) != 0 || status.st_size != (off_t)content->length) return false;
  char *present = must_alloc(content->length);
  ssize_t length = pread(fd, present, content->length, 0);
  bool same = length == (ssize_t)content->length && memcmp(present, content->data, content->length) == 0;
  free(present);
  return same;
}

/* In place, so that a file bound over another (as containers do with /etc/hosts) can be written, and mostly within the
 * blocks it has. 0 or errno. */
static int write_file(const char *path, mode_t mode, const struct span *content) {
  struct owner root = {.uid = 0, .gid = 0, .mode = 0755};
  int error = files_make_parent(path, &root);
  if (error != 0) return error;
  int fd = open_plain(path, mode);
  if (fd < 0) return errno;
  if (!has_content(fd, content)) {
    ssize_t written = content->length > 0 ? pwrite(fd, content->data, content->length, 0) : 0;
    if (written < 0) {
      error = errno;
    } else if (written != (ssize_t)content->length) {
      error = ENOSPC;
    } else if (ftruncate(fd, (off_t)content->length) != 0) {
      error = errno;
    }
  }
  if (error == 0 && fchmod(fd, mode) != 0) error = errno;
  close(fd);
  return error;
}

void files_activate(struct reader *request) {
  take_bytes(request, 16); /* key */
  take_span(request);      /* generation */
  take_u8(request);        /* resetStreams */
  take_u64(request);       /* wallNs */
  take_span(request);      /* entropy */
  take_span(request);      /* hostname */
  int first_error = 0;
  const char *failed = "";
  for (uint32_t count = take_u32(request); count > 0; count--) {
    char *path = take_string(request);
    mode_t mode = take_u32(request) & 07777;
    struct span content = take_span(request);
    int error = path[0] == '/' ? write_file(path, mode, &content) : EINVAL;
    if (error != 0 && first_error == 0) {
      first_error = error;
      failed = path;
    }
  }
  if (first_error != 0) files_fail_errno(first_error, failed);
  files_finish_empty();
}
