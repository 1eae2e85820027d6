#define _GNU_SOURCE
#include "boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "environment.h"
#include "util.h"

#define PORT_NAME "aenv.agent"
/* Devices appear a moment after their driver; one that is not there by then is missing, milliseconds. */
#define DEVICE_WAIT_MS 10000

/* linux/mount.h and linux/module.h are not in every C library. */
#define OPEN_TREE_CLONE_FLAG 1u
#define MOVE_MOUNT_EMPTY_PATH 4u
#define MODULE_COMPRESSED 4

#define NEW_ROOT "/newroot"

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* Waits until `ready` says so; whether it did in time. */
static bool wait_until(bool (*ready)(const void *context), const void *context) {
  uint64_t end = monotonic_ns() + DEVICE_WAIT_MS * NS_PER_MS;
  const struct timespec moment = {.tv_nsec = 1000 * 1000};
  while (!ready(context)) {
    if (monotonic_ns() > end) return false;
    nanosleep(&moment, NULL);
  }
  return true;
}

static bool path_exists(const void *path) { return exists(path); }

static void must_mount(const char *source, const char *target, const char *type, unsigned long flags, const char *options) {
  mkdir(target, 0755);
  if (mount(source, target, type, flags, options) != 0) die("cannot mount %s on %s: %s", source, target, strerror(errno));
}

/* The first three descriptors, whatever the kernel could open for us; messages also go to the kernel log (util.c). */
static void open_standard_descriptors(void) {
  int nothing = open("/dev/null", O_RDWR);
  int console = open("/dev/console", O_WRONLY | O_NOCTTY);
  if (nothing < 0) die("no /dev/null: %s", strerror(errno));
  int output = console >= 0 ? console : nothing;
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  if (nothing > STDERR_FILENO) close(nothing);
  if (console > STDERR_FILENO) close(console);
}

static void load_module(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  size_t length = strlen(path);
  bool plain = length > 3 && strcmp(path + length - 3, ".ko") == 0;
  if (fd < 0 || (syscall(SYS_finit_module, fd, "", plain ? 0 : MODULE_COMPRESSED) != 0 && errno != EEXIST)) {
    warn("cannot load %s: %s", path, strerror(errno));
  }
  close_fd(&fd);
}

static void load_modules(void) {
  static char order[16384];
  if (read_small_file("/modules/order", order, sizeof order) < 0) return;
  char *state = NULL;
  for (char *line = strtok_r(order, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state)) {
    char path[512];
    if (line[0] == '#') continue;
    snprintf(path, sizeof path, "%s%s", line[0] == '/' ? "" : "/modules/", line);
    load_module(path);
  }
}

/* The module tree of the initramfs, detached so that it can be attached in the new root; -1 when there is none. */
static int detach_module_tree(const char *path) {
  return (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE_FLAG | O_CLOEXEC);
}

static void attach_module_tree(int tree, const char *path) {
  if (tree < 0) return;
  mkdir("/lib/modules", 0755);
  mkdir(path, 0755);
  if (syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_MOUNT_EMPTY_PATH) != 0) {
    warn("cannot show the kernel modules in %s: %s", path, strerror(errno));
  } else {
    mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
  }
  close(tree);
}

static void wait_for_device(const char *device) {
  if (!wait_until(path_exists, device)) die("the device %s did not appear", device);
}

static void mount_root(const struct kernel_parameters *parameters) {
  char device[64];
  char type[16];
  if (!kernel_parameter(parameters, "aenv.root", device, sizeof device)) die("the kernel parameter aenv.root is missing");
  if (!kernel_parameter(parameters, "aenv.fstype", type, sizeof type)) strcpy(type, "ext4");
  wait_for_device(device);
  must_mount(device, "/lower", type, MS_RDONLY, NULL);
  if (kernel_parameter(parameters, "aenv.upper", device, sizeof device)) {
    wait_for_device(device);
    must_mount(device, "/upper", "ext4", 0, NULL);
  } else {
    must_mount("tmpfs", "/upper", "tmpfs", 0, NULL);
  }
  mkdir("/upper/u", 0755);
  mkdir("/upper/w", 0755);
  mkdir(NEW_ROOT, 0755);
  /* Without redirect_dir a directory of the image could not be renamed. */
  const char *layers = "lowerdir=/lower,upperdir=/upper/u,workdir=/upper/w,redirect_dir=on";
  must_mount("overlay", NEW_ROOT, "overlay", 0, layers);
}

static void switch_root(void) {
  static const char *const moved[] = {"/dev", "/proc", "/sys"};
  for (size_t i = 0; i < array_length(moved); i++) {
    char target[64];
    snprintf(target, sizeof target, NEW_ROOT "%s", moved[i]);
    mkdir(target, 0755);
    if (mount(moved[i], target, NULL, MS_MOVE, NULL) != 0) die("cannot move %s: %s", moved[i], strerror(errno));
  }
  if (chdir(NEW_ROOT) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0) {
    die("cannot switch to the root file system: %s", strerror(errno));
  }
}

void boot(void) {
  umask(022);
  must_mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
  open_standard_descriptors();
  must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
  must_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
  struct kernel_parameters parameters;
  if (read_small_file("/proc/cmdline", parameters.text, sizeof parameters.text) < 0) parameters.text[0] = '\0';
  struct utsname kernel;
  char modules[160];
  uname(&kernel);
  snprintf(modules, sizeof modules, "/lib/modules/%s", kernel.release);
  load_modules();
  int tree = detach_module_tree(modules);
  mount_root(&parameters);
  switch_root();
  attach_module_tree(tree, modules);
  environment_prepare(&parameters);
}

/* Finds the device of a named virtio port. */
static bool find_port(char *device, size_t size) {
  DIR *ports = opendir("/sys/class/virtio-ports");
  if (ports == NULL) return false;
  struct dirent *entry;
  bool found = false;
  while (!found && (entry = readdir(ports)) != NULL) {
    char path[320];
    char name[64];
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
    if (entry->d_name[0] == '.' || read_small_file(path, name, sizeof name) < 0) continue;
    name[strcspn(name, "\n")] = '\0';
    if (strcmp(name, PORT_NAME) != 0) continue;
    snprintf(device, size, "/dev/%s", entry->d_name);
    found = exists(device);
  }
  closedir(ports);
  return found;
}

static bool port_exists(const void *context) {
  (void)context;
  char device[320];
  return find_port(device, sizeof device);
}

int boot_open_port(void) {
  char device[320];
  if (!wait_until(port_exists, NULL) || !find_port(device, sizeof device)) die("no virtio port is named " PORT_NAME);
  int fd = open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) die("cannot open %s: %s", device, strerror(errno));
  /* Root in the guest cannot open it either while the agent has it: a port has one user. */
  chmod(device, 0600);
  return fd;
}
