/* The files of an activate: identity of the sandbox, names, resolver. Written while the user processes are still frozen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "files.h"
#include "protocol.gen.h"
#include "util.h"

#define TMPFS_SUPER_MAGIC 0x01021994 /* statfs(2) */

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
static int write_open(int fd, mode_t mode, const struct span *content) {
  struct stat status;
  if (!has_content(fd, content)) {
    ssize_t written = content->length > 0 ? pwrite(fd, content->data, content->length, 0) : 0;
    if (written < 0) return errno;
    if (written != (ssize_t)content->length) return ENOSPC;
    if (ftruncate(fd, (off_t)content->length) != 0) return errno;
  }
  if (fstat(fd, &status) != 0) return errno;
  return (status.st_mode & 07777) == mode || fchmod(fd, mode) == 0 ? 0 : errno;
}

/* Of an activate's body, what comes before the files. */
static void skip_to_files(struct reader *request) {
  take_bytes(request, 16); /* key */
  take_span(request);      /* generation */
  take_u8(request);        /* resetStreams */
  take_u64(request);       /* wallNs */
  take_span(request);      /* entropy */
  take_span(request);      /* hostname */
}

/* --- in a worker ------------------------------------------------------------------------------------------------ */

static int write_file(const char *path, mode_t mode, const struct span *content) {
  struct owner root = {.uid = 0, .gid = 0, .mode = 0755};
  int error = files_make_parent(path, &root);
  if (error != 0) return error;
  int fd = open_plain(path, mode);
  if (fd < 0) return errno;
  error = write_open(fd, mode, content);
  close(fd);
  return error;
}

void files_activate(struct reader *request) {
  skip_to_files(request);
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

/* --- in the agent itself ---------------------------------------------------------------------------------------- */

static dev_t device_in_memory(const char *directory) {
  struct statfs system;
  struct stat status;
  if (statfs(directory, &system) != 0 || (unsigned long)system.f_type != TMPFS_SUPER_MAGIC) return 0;
  return stat(directory, &status) == 0 ? status.st_dev : 0;
}

void memory_devices_find(struct memory_devices *devices) {
  devices->run = device_in_memory("/run");
  devices->shm = device_in_memory("/dev/shm");
}

/* Whether an O_PATH descriptor is a regular file on a file system in memory, asked in a way that never waits for a server. */
static bool is_in_memory(const struct memory_devices *devices, int fd) {
  struct statx status;
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) != 0) return false;
  dev_t device = makedev(status.stx_dev_major, status.stx_dev_minor);
  return S_ISREG(status.stx_mode) && device != 0 && (device == devices->run || device == devices->shm);
}

/* Opens an existing file whose path the kernel has in its cache and which is kept in memory: neither the look-up nor writing
 * can wait for storage, whatever else was mounted meanwhile. -1 = not such a file. */
static int open_in_memory(const struct memory_devices *devices, const char *path) {
  struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_CACHED | RESOLVE_NO_SYMLINKS};
  char link[32];
  int handle = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
  if (handle < 0) return -1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  int fd = is_in_memory(devices, handle) ? open(link, O_RDWR | O_CLOEXEC) : -1;
  close(handle);
  return fd;
}

bool files_activate_in_memory(struct reader *request, const struct memory_devices *devices) {
  skip_to_files(request);
  for (uint32_t count = take_u32(request); count > 0; count--) {
    char *path = take_string(request);
    mode_t mode = take_u32(request) & 07777;
    struct span content = take_span(request);
    int fd = path[0] == '/' ? open_in_memory(devices, path) : -1;
    free(path);
    if (fd < 0) return false;
    int error = write_open(fd, mode, &content);
    close(fd);
    if (error != 0) return false;
  }
  return true;
}
