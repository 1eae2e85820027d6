/* read-file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dispatch.h"
#include "files.h"
#include "helper.h"
#include "protocol.gen.h"
#include "util.h"

/* One read of the file, bytes. */
#define CHUNK (128u * 1024)

/* Moves the file into the ring, to its end or `limit` bytes; false with errno when it cannot be read. */
static bool pour(int file, struct ring *body, uint64_t limit) {
  while (limit > 0) {
    size_t room;
    uint8_t *at = ring_free(body, &room);
    if (room == 0) {
      if (ring_await_space(body)) ring_sleep(body->drained);
      continue;
    }
    room = minimum(room, CHUNK);
    ssize_t got = read(file, at, minimum(room, limit));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;
    limit -= (uint64_t)got;
    ring_publish(body, (size_t)got, RING_AT_ONCE);
  }
  return true;
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

void files_read(struct reader *request, struct ring *body) {
  char *path = take_string(request);
  uint64_t offset = take_u64(request);
  uint64_t length = take_u64(request);
  uint32_t flags = take_u32(request);
  files_check_path(path);
  int fd = open_for_reading(path, flags);
  skip_to(fd, offset, path);
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  struct user_tables tables = user_tables_load();
  struct buffer entry = {0};
  put_u32(&entry, 1);
  files_put_open_entry(&entry, &tables, path, fd);
  files_respond(&entry);
  /* To the end of the file, not to its size: files of procfs have none. */
  /* What calls itself a file and has the reader wait is none: /proc/kmsg. */
  if (!pour(fd, body, length)) _exit((int)(errno == EAGAIN ? STATUS_NOT_REGULAR : status_of_errno(errno)));
  ring_end(body);
  _exit(STATUS_OK);
}
