/* write-file and compose-file: the content is staged on the target's file system and put in place as a whole. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "files.h"
#include "helper.h"
#include "protocol.gen.h"
#include "util.h"

#define XATTR_PREFIX "user.e2b."
#define MAX_LINKS 40
#define RENAME_WITHOUT_REPLACING 1u

/* Names that watches hide. */
#define TEMPORARY_PREFIX ".aenv-"

/* Every page written behind the end of a file changes its inode too; so the end of a long stage is moved ahead, bytes. */
#define LONG_BODY (512u * 1024)
#define AHEAD (4u * 1024 * 1024)

struct attribute {
  char *name; /* with prefix */
  const uint8_t *value;
  uint32_t length;
};

/* What is to be written where. */
struct target {
  char *path; /* no link any more, unless it leads nowhere */
  struct owner owner;
  struct attribute *attributes;
  uint32_t attribute_count;
  bool replace_attributes;
};

struct stage {
  int fd;
  char *temporary; /* its name where the file system has no unnamed files */
};

__attribute__((noreturn)) static void fail(const struct stage *stage, int error, const char *path) {
  if (stage->temporary != NULL) unlink(stage->temporary);
  files_fail_errno(error, path);
}

/* Follows links at the end of a path, so that writing through a link writes what it names, even if that is still missing. */
static char *follow_links(char *path) {
  for (int hops = 0; hops < MAX_LINKS; hops++) {
    char link[PATH_MAX];
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0) return path;
    link[length] = '\0';
    size_t parent = link[0] == '/' ? 0 : (size_t)(strrchr(path, '/') - path) + 1;
    char *next = must_alloc(parent + (size_t)length + 1);
    memcpy(next, path, parent);
    strcpy(next + parent, link);
    path = next;
  }
  files_fail(STATUS_INVALID, ELOOP, path);
}

static char *parent_of(const char *path) {
  size_t length = (size_t)(strrchr(path, '/') - path);
  char *parent = must_alloc(length + 2);
  memcpy(parent, path, length);
  if (length == 0) parent[0] = '/';
  return parent;
}

/* A target that exists must be a regular file. */
static void check_target(const char *path) {
  struct stat status;
  size_t length = strlen(path);
  if (length > 0 && path[length - 1] == '/') files_fail(STATUS_IS_DIRECTORY, EISDIR, path);
  if (stat(path, &status) != 0) {
    if (errno != ENOENT) files_fail_errno(errno, path);
    return;
  }
  if (S_ISDIR(status.st_mode)) files_fail(STATUS_IS_DIRECTORY, EISDIR, path);
  if (!S_ISREG(status.st_mode)) files_fail(STATUS_NOT_REGULAR, 0, path);
}

static struct stage open_stage(const char *target) {
  char *directory = parent_of(target);
  struct stage stage = {.fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
  if (stage.fd >= 0) return stage;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT) files_fail_errno(errno, directory);
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random) files_fail_errno(errno, "random number");
  size_t size = strlen(directory) + sizeof TEMPORARY_PREFIX + 18;
  stage.temporary = must_alloc(size);
  snprintf(stage.temporary, size, "%s/" TEMPORARY_PREFIX "%016llx", directory, (unsigned long long)random);
  /* Announced first: a worker that is killed cannot clean up, the agent does it. */
  helper_send(FILES_TEMPORARY, stage.temporary, strlen(stage.temporary));
  stage.fd = open(stage.temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (stage.fd < 0) files_fail_errno(errno, directory);
  return stage;
}

/* --- attributes ------------------------------------------------------------------------------------------------- */

static void take_attributes(struct reader *request, struct target *target) {
  target->attribute_count = take_u32(request);
  target->attributes = must_alloc(target->attribute_count * sizeof *target->attributes);
  for (uint32_t i = 0; i < target->attribute_count; i++) {
    char *name = take_string(request);
    struct span value = take_span(request);
    size_t size = sizeof XATTR_PREFIX + strlen(name);
    char *full = must_alloc(size);
    snprintf(full, size, XATTR_PREFIX "%s", name);
    target->attributes[i] = (struct attribute){.name = full, .value = value.data, .length = value.length};
  }
}

static bool is_wanted(const struct target *target, const char *name) {
  for (uint32_t i = 0; i < target->attribute_count; i++) {
    if (strcmp(target->attributes[i].name, name) == 0) return true;
  }
  return false;
}

/* Makes the attributes of a file those of the request; 0 or errno. File systems without attributes are fine. */
static int set_attributes(int fd, const struct target *target) {
  static char names[65536];
  if (!target->replace_attributes) return 0;
  for (uint32_t i = 0; i < target->attribute_count; i++) {
    const struct attribute *attribute = &target->attributes[i];
    if (fsetxattr(fd, attribute->name, attribute->value, attribute->length, 0) == 0) continue;
    return errno == EOPNOTSUPP ? 0 : errno;
  }
  ssize_t length = flistxattr(fd, names, sizeof names);
  for (ssize_t at = 0; at < length; at += (ssize_t)strlen(names + at) + 1) {
    const char *name = names + at;
    if (strncmp(name, XATTR_PREFIX, sizeof XATTR_PREFIX - 1) == 0 && !is_wanted(target, name)) fremovexattr(fd, name);
  }
  return 0;
}

/* --- putting in place ------------------------------------------------------------------------------------------- */

/* Makes the file the user's, where the file system has owners; 0 or errno. */
static int give_away(int fd, const struct target *target) {
  bool given = fchown(fd, target->owner.uid, target->owner.gid) == 0;
  return given || errno == EPERM || errno == EOPNOTSUPP ? 0 : errno;
}

/* Makes sure that `size` bytes fit into an existing file without touching its content; 0 or errno. */
static int reserve(int fd, uint64_t size, const struct stat *before) {
  if (size == 0 || fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size) == 0) return 0;
  int error = errno;
  /* Gives back what was reserved behind the old end. */
  int ignored = ftruncate(fd, before->st_size);
  (void)ignored;
  if (error != EOPNOTSUPP && error != ENOSYS) return error;
  struct statvfs space;
  if (fstatvfs(fd, &space) != 0) return errno;
  uint64_t present = (uint64_t)before->st_blocks * 512;
  return size > present + (uint64_t)space.f_bavail * space.f_frsize ? ENOSPC : 0;
}

static int copy_content(int from, int to, uint64_t size) {
  off_t read_at = 0;
  off_t write_at = 0;
  while ((uint64_t)write_at < size) {
    ssize_t moved = copy_file_range(from, &read_at, to, &write_at, size - (uint64_t)write_at, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) break;
  }
  if ((uint64_t)write_at >= size) return 0;
  /* Where the kernel cannot copy by itself. */
  if (lseek(from, write_at, SEEK_SET) < 0 || lseek(to, write_at, SEEK_SET) < 0) return errno;
  static char chunk[65536];
  ssize_t got;
  while ((got = read(from, chunk, sizeof chunk)) > 0) {
    if (write_all(to, chunk, (size_t)got) != 0) return errno;
  }
  return got < 0 ? errno : 0;
}

/* Fills a file that exists from the stage; it keeps its inode and mode and gets the owner. 0 or errno. */
static int overwrite(const struct stage *stage, const struct target *target, uint64_t size) {
  int fd = open(target->path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno;
  struct stat before;
  if (fstat(fd, &before) != 0) return errno;
  if (!S_ISREG(before.st_mode)) return ENXIO;
  int error = reserve(fd, size, &before);
  if (error == 0) error = copy_content(stage->fd, fd, size);
  if (error == 0 && ftruncate(fd, (off_t)size) != 0) error = errno;
  if (error == 0) error = give_away(fd, target);
  if (error == 0) error = set_attributes(fd, target);
  close(fd);
  if (error == 0 && stage->temporary != NULL) unlink(stage->temporary);
  return error;
}

static int link_stage(const struct stage *stage, const char *path) {
  if (stage->temporary == NULL) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", stage->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  }
  if (syscall(SYS_renameat2, AT_FDCWD, stage->temporary, AT_FDCWD, path, RENAME_WITHOUT_REPLACING) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (link(stage->temporary, path) != 0) return errno;
  unlink(stage->temporary);
  return 0;
}

/* Appearing by a link is only a "create" to a watch; whoever waits for content expects a "modify" too. The name may mean
 * another file by now, which is not to be touched. */
static void announce_content(const struct stage *stage, const char *path, uint64_t size) {
  struct stat staged;
  struct stat named;
  int fd = size > 0 ? open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (fd < 0) return;
  bool same = fstat(stage->fd, &staged) == 0 && fstat(fd, &named) == 0 && staged.st_ino == named.st_ino &&
              staged.st_dev == named.st_dev;
  if (same && ftruncate(fd, (off_t)size) != 0) warn("cannot touch %s: %s", path, strerror(errno));
  close(fd);
}

/* Makes the stage the target; EEXIST when something has that name. */
static int create(const struct stage *stage, const struct target *target, uint64_t size) {
  int error = give_away(stage->fd, target);
  if (error != 0) return error;
  if (fchmod(stage->fd, target->owner.mode & ~022u) != 0) return errno;
  error = set_attributes(stage->fd, target);
  if (error == 0) error = link_stage(stage, target->path);
  if (error == 0) announce_content(stage, target->path, size);
  return error;
}

static void put_in_place(const struct stage *stage, const struct target *target, uint64_t size) {
  int error = create(stage, target, size);
  if (error == EEXIST) error = overwrite(stage, target, size);
  if (error != 0) fail(stage, error, target->path);
}

static void finish(uint64_t size) {
  struct buffer body = {0};
  put_u64(&body, size);
  files_finish(&body);
}

/* Parents first, then the stage beside the target. */
static struct stage prepare(struct target *target) {
  struct owner parents = target->owner;
  parents.mode = 0755;
  files_check_path(target->path);
  check_target(target->path);
  target->path = follow_links(target->path);
  int error = files_make_parent(target->path, &parents);
  if (error != 0) files_fail_errno(error, target->path);
  return open_stage(target->path);
}

/* Writes the body into the stage up to its end; the bytes. A body that never ends, because the agent died, ends this worker
 * with it. */
static uint64_t receive(struct ring *body, const struct stage *stage, const char *path) {
  uint64_t total = 0;
  uint64_t end = 0; /* of the stage, when it was moved ahead */
  for (;;) {
    bool complete = ring_has_ended(body);
    size_t length;
    const uint8_t *at = ring_filled(body, &length);
    if (length > 0) {
      uint64_t ahead = total + length + AHEAD;
      if (total >= LONG_BODY && total + length > end && ftruncate(stage->fd, (off_t)ahead) == 0) end = ahead;
      if (write_all(stage->fd, at, length) != 0) fail(stage, errno, path);
      ring_consume(body, length);
      total += length;
    } else if (complete) {
      if (end > total && ftruncate(stage->fd, (off_t)total) != 0) fail(stage, errno, path);
      return total;
    } else if (ring_await_data(body)) {
      ring_sleep(body->filled);
    }
  }
}

void files_write(struct reader *request, struct ring *body) {
  struct target target = {.path = take_string(request), .replace_attributes = true};
  target.owner = files_take_owner(request);
  target.owner.mode = take_u32(request) & 07777;
  take_u32(request); /* flags: none defined */
  take_attributes(request, &target);
  struct stage stage = prepare(&target);
  uint64_t size = receive(body, &stage, target.path);
  put_in_place(&stage, &target, size);
  finish(size);
}

/* Adds a file to the stage and its length to `size`; 0 or errno. */
static int append_file(int from, int to, uint64_t *size) {
  for (;;) {
    ssize_t moved = sendfile(to, from, NULL, 1 << 20);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return 0;
    *size += (uint64_t)moved;
  }
}

static int open_source(const struct stage *stage, const char *path) {
  struct stat status;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &status) != 0) fail(stage, errno, path);
  if (S_ISDIR(status.st_mode)) fail(stage, EISDIR, path);
  if (!S_ISREG(status.st_mode)) fail(stage, ENXIO, path);
  return fd;
}

void files_compose(struct reader *request) {
  char **sources = take_strings(request);
  struct target target = {.path = take_string(request)};
  target.owner = files_take_owner(request);
  target.owner.mode = take_u32(request) & 07777;
  struct stat status;
  for (char **source = sources; *source != NULL; source++) {
    files_check_path(*source);
    if (stat(*source, &status) != 0) files_fail_errno(errno, *source);
  }
  struct stage stage = prepare(&target);
  uint64_t size = 0;
  for (char **source = sources; *source != NULL; source++) {
    int fd = open_source(&stage, *source);
    int error = append_file(fd, stage.fd, &size);
    if (error != 0) fail(&stage, error, target.path);
    close(fd);
  }
  put_in_place(&stage, &target, size);
  struct stat result;
  if (stat(target.path, &result) != 0) files_fail_errno(errno, target.path);
  for (char **source = sources; *source != NULL; source++) {
    bool is_target = stat(*source, &status) == 0 && status.st_ino == result.st_ino && status.st_dev == result.st_dev;
    if (!is_target) unlink(*source);
  }
  finish(size);
}
