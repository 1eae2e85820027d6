#include "environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "network.h"
#include "util.h"

#define OPEN_FILES 1048576u
#define DEFAULT_HOSTNAME "sandbox"
#define IDENTITY_DIRECTORY "/run/aenv"

struct guest_mount {
  const char *type;
  const char *target;
  unsigned long flags;
  const char *options;
};

/* Memory file systems are limited to a quarter of the memory each. /tmp is on the root file system: it survives with the disk
 * and counts against it. */
static const struct guest_mount guest_mounts[] = {
    {"cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
    {"devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
    {"tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777,size=25%"},
    {"tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=755,size=25%"},
};

static const char *const device_links[][2] = {
    {"/proc/self/fd", "/dev/fd"},
    {"/proc/self/fd/0", "/dev/stdin"},
    {"/proc/self/fd/1", "/dev/stdout"},
    {"/proc/self/fd/2", "/dev/stderr"},
};

/* As distributions set them: no links to files of others, no following of links that others left in shared directories. */
static const char *const protections[] = {"/proc/sys/fs/protected_hardlinks", "/proc/sys/fs/protected_symlinks"};

bool kernel_parameter(const struct kernel_parameters *parameters, const char *name, char *value, size_t size) {
  size_t name_length = strlen(name);
  for (const char *at = parameters->text; *at != '\0';) {
    at += strspn(at, " \n");
    size_t length = strcspn(at, " \n");
    if (length > name_length && at[name_length] == '=' && strncmp(at, name, name_length) == 0) {
      size_t value_length = length - name_length - 1;
      if (value_length >= size) return false;
      memcpy(value, at + name_length + 1, value_length);
      value[value_length] = '\0';
      return true;
    }
    at += length;
  }
  return false;
}

static void mount_all(void) {
  for (size_t i = 0; i < array_length(guest_mounts); i++) {
    const struct guest_mount *entry = &guest_mounts[i];
    mkdir(entry->target, 0755);
    if (mount(entry->type, entry->target, entry->type, entry->flags, entry->options) != 0) {
      die("cannot mount %s on %s: %s", entry->type, entry->target, strerror(errno));
    }
  }
}

static void make_directory(const char *path, mode_t mode) {
  mkdir(path, mode);
  chmod(path, mode);
}

/* Replaces a file of the image, which may be a link into a directory that does not exist here. */
static void write_text(const char *path, const char *text) {
  unlink(path);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 || write_all(fd, text, strlen(text)) != 0) warn("cannot write %s: %s", path, strerror(errno));
  close_fd(&fd);
}

/* A file of /etc that every generation writes anew, kept in memory and bound over the image's: an identity is not part of the
 * disk, and writing it there would run the file system and dirty its pages in every clone. */
static void write_identity(const char *name, const char *text) {
  char in_etc[64];
  char in_memory[64];
  snprintf(in_etc, sizeof in_etc, "/etc/%s", name);
  snprintf(in_memory, sizeof in_memory, IDENTITY_DIRECTORY "/%s", name);
  write_text(in_etc, text);
  write_text(in_memory, text);
  if (mount(in_memory, in_etc, NULL, MS_BIND, NULL) != 0) warn("cannot bind %s: %s", in_etc, strerror(errno));
}

/* Until the first activate, which brings the sandbox's own names. */
static void name_machine(const struct kernel_parameters *parameters) {
  char hostname[64];
  char gateway[64];
  char text[512];
  if (!kernel_parameter(parameters, "aenv.hostname", hostname, sizeof hostname)) strcpy(hostname, DEFAULT_HOSTNAME);
  if (sethostname(hostname, strlen(hostname)) != 0) warn("cannot set the host name: %s", strerror(errno));
  snprintf(text, sizeof text, "%s\n", hostname);
  make_directory(IDENTITY_DIRECTORY, 0755);
  write_identity("hostname", text);
  snprintf(text, sizeof text,
           "127.0.0.1\tlocalhost\n127.0.1.1\t%s\n::1\tlocalhost ip6-localhost ip6-loopback\n", hostname);
  write_identity("hosts", text);
  if (kernel_parameter(parameters, "aenv.gw4", gateway, sizeof gateway)) {
    snprintf(text, sizeof text, "nameserver %s\n", gateway);
    write_identity("resolv.conf", text);
  }
}

static void set_limits(void) {
  const struct rlimit files = {.rlim_cur = OPEN_FILES, .rlim_max = OPEN_FILES};
  const struct rlimit core = {.rlim_cur = 0, .rlim_max = 0};
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) warn("cannot raise the limit of open files: %s", strerror(errno));
  setrlimit(RLIMIT_CORE, &core);
}

void environment_prepare(const struct kernel_parameters *parameters) {
  mount_all();
  for (size_t i = 0; i < array_length(device_links); i++) {
    if (symlink(device_links[i][0], device_links[i][1]) != 0 && errno != EEXIST) warn("cannot link %s", device_links[i][1]);
  }
  for (size_t i = 0; i < array_length(protections); i++) {
    if (write_control_file(protections[i], "1") != 0) warn("cannot set %s: %s", protections[i], strerror(errno));
  }
  make_directory("/tmp", 01777);
  make_directory("/run/lock", 01777);
  name_machine(parameters);
  set_limits();
  network_prepare(parameters);
}
