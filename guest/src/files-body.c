/* read-file, and moving bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "helper.h"
#include "protocol.gen.h"
#include "util.h"

#define CHUNK (256u * 1024)
#define TO_THE_END UINT64_MAX

/* Without copying through user space; -1 with EINVAL where a file system cannot. */
static ssize_t pour_by_splice(int from, int to, size_t length) { return splice(from, NULL, to, NULL, length, SPLICE_F_MOVE); }

static ssize_t pour_by_copy(int from, int to, size_t length) {
  static char chunk[65536];
  ssize_t got = read(from, chunk, minimum(length, sizeof chunk));
  if (got > 0 && write_all(to, chunk, (size_t)got) != 0) return -1;
  return got;
}

int64_t files_pour(int from, int to, uint64_t limit) {
  int64_t total = 0;
  bool can_splice = true;
  while (limit > 0) {
    size_t length = minimum(limit, CHUNK);
    ssize_t moved = can_splice ? pour_by_splice(from, to, length) : pour_by_copy(from, to, length);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && can_splice && (errno == EINVAL || errno == ENOSYS)) {
      can_splice = false;
      continue;
    }
    if (moved < 0) return -1;
    if (moved == 0) break;
    total += moved;
    limit -= (uint64_t)moved;
  }
  return total;
}

/* Opens a file for reading. Everything but regular files is refused before it is opened: already opening a FIFO has
 * consequences for its writer. */
static int open_for_reading(const char *path, uint32_t flags) {
  struct stat status;
  if (stat(path, &status) != 0) files_fail_errno(errno, path);
  if (S_ISDIR(status.st_mode)) files_fail(STATUS_IS_DIRECTORY, EISDIR, path);
  if (!S_ISREG(status.st_mode) && (flags & READ_SPECIAL) == 0) files_fail(STATUS_NOT_REGULAR, 0, path);
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) files_fail_errno(errno, path);
  struct stat opened;
  if (fstat(fd, &opened) != 0) files_fail_errno(errno, path);
  if (S_ISDIR(opened.st_mode)) files_fail(STATUS_IS_DIRECTORY, EISDIR, path);
  if (!S_ISREG(opened.st_mode) && (flags & READ_SPECIAL) == 0) files_fail(STATUS_NOT_REGULAR, 0, path);
  if (S_ISFIFO(opened.st_mode)) {
    /* Without a writer a non-blocking read says "end"; whoever reads a FIFO waits for one. */
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    poll(&wait, 1, -1);
  }
  if (!S_ISREG(opened.st_mode)) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return fd;
}

static void skip_to(int fd, uint64_t offset, const char *path) {
  if (offset == 0) return;
  if (offset > INT64_MAX) files_fail(STATUS_INVALID, EINVAL, "offset");
  if (lseek(fd, (off_t)offset, SEEK_SET) < 0) files_fail_errno(errno == ESPIPE ? EINVAL : errno, path);
}

void files_read(struct reader *request) {
  char *path = take_string(request);
  uint64_t offset = take_u64(request);
  uint64_t length = take_u64(request);
  uint32_t flags = take_u32(request);
  files_check_path(path);
  int fd = open_for_reading(path, flags);
  skip_to(fd, offset, path);
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  struct user_tables tables = user_tables_load();
  struct buffer body = {0};
  put_u32(&body, 1);
  files_put_open_entry(&body, &tables, path, fd);
  files_respond(&body);
  /* To the end of the file, not to its size: files of procfs have none. */
  if (files_pour(fd, HELPER_KEPT + FILES_BODY, length) < 0) _exit(STATUS_IO);
  _exit(STATUS_OK);
}
