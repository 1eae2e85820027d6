#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

uint64_t wall_ns(void) { return clock_ns(CLOCK_REALTIME); }

void *must_alloc(size_t size) {
  void *memory = calloc(1, size > 0 ? size : 1);
  if (memory == NULL) die("out of memory (%zu bytes)", size);
  return memory;
}

void *must_realloc(void *memory, size_t size) {
  void *moved = realloc(memory, size > 0 ? size : 1);
  if (moved == NULL) die("out of memory (%zu bytes)", size);
  return moved;
}

static void say(const char *format, va_list arguments) {
  char line[512];
  int prefix = snprintf(line, sizeof line, "aenv-guest: ");
  vsnprintf(line + prefix, sizeof line - (size_t)prefix - 1, format, arguments);
  strcat(line, "\n");
  ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
  (void)ignored;
  /* A machine may have no console; its kernel log is also where a panic would be looked for. */
  int log = getpid() == 1 ? open("/dev/kmsg", O_WRONLY | O_CLOEXEC) : -1;
  if (log < 0) return;
  ignored = write(log, line, strlen(line));
  close(log);
}

void warn(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
}

void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  /* A machine without its agent is of no use: better off than in a panic. */
  if (getpid() == 1) reboot(RB_POWER_OFF);
  _exit(70);
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

int write_all(int fd, const void *data, size_t length) {
  const char *at = data;
  while (length > 0) {
    ssize_t written = write(fd, at, length);
    if (written < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    at += written;
    length -= (size_t)written;
  }
  return 0;
}

ssize_t read_small_file(const char *path, char *into, size_t size) {
  /* Without waiting, should somebody have put a FIFO there. */
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return -1;
  size_t length = 0;
  ssize_t got = 0;
  while (length < size - 1 && (got = read(fd, into + length, size - 1 - length)) > 0) length += (size_t)got;
  int error = errno;
  close(fd);
  errno = error;
  if (got < 0) return -1;
  into[length] = '\0';
  return (ssize_t)length;
}

int write_control_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = write_all(fd, text, strlen(text));
  int error = errno;
  close(fd);
  errno = error;
  return result;
}

size_t bytes_waiting(int fd) {
  if (fd < 0) return 0;
  /* A terminal moves its bytes to where FIONREAD counts them only when somebody looks. */
  struct pollfd look = {.fd = fd, .events = POLLIN};
  poll(&look, 1, 0);
  int waiting = 0;
  return ioctl(fd, FIONREAD, &waiting) == 0 && waiting > 0 ? (size_t)waiting : 0;
}
