/*
 * aenv-launch: becomes an engine process that is separate from its server.
 *
 * It runs as root only until the engine's namespaces, cgroups and files are in place, then gives everything up and
 * executes the engine under the same pid:
 *
 *   aenv-launch [options] -- PROGRAM [ARGUMENT]...
 *     --netns PATH       enter this network namespace
 *     --cgroup DIR       join this cgroup (repeatable, one per hierarchy)
 *     --uid N --gid N    become this user; supplementary groups are dropped
 *     --group N          keep only this supplementary group (with --gid)
 *     --nofile N         limit of open files
 *     --nice N           scheduling priority
 *     --oom N            how readily the kernel ends it when memory runs out (0..1000)
 *     --dir FD=PATH      directory the engine reaches as /proc/self/fd/FD, whatever lies above it
 *     --file FD=PATH     file the engine inherits, read-only
 *     --tap FD=NAME      tap device of the entered namespace the engine inherits
 *
 * Every other descriptor above 2 is closed, core dumps and transparent huge pages are off, the umask is 077, no new
 * privileges can be gained.
 * An error is one line on stderr and exit status 125; 126 when the program itself cannot be executed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From <linux/if_tun.h>, which musl does not carry. */
#define TUN_SET_IFF 0x400454caUL
#define TUN_TAP 0x0002
#define TUN_NO_PI 0x1000
#define TUN_VNET_HDR 0x4000

#define MAX_ITEMS 16
/* Descriptors are parked here until every target number is free. */
#define PARKING 64
#define MAX_TARGET 32

enum kind { KIND_DIR, KIND_FILE, KIND_TAP };

struct inherited {
  enum kind kind;
  int target;
  const char *name;
  int parked;
};

struct options {
  const char *netns;
  const char *cgroups[MAX_ITEMS];
  int cgroup_count;
  struct inherited inherited[MAX_ITEMS];
  int inherited_count;
  long uid, gid, group, nofile, nice, oom;
};

static const long UNSET = LONG_MIN;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
  int saved = errno;
  va_list arguments;
  fputs("aenv-launch: ", stderr);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (saved != 0) fprintf(stderr, ": %s", strerror(saved));
  fputc('\n', stderr);
  exit(125);
}

__attribute__((noreturn)) static void usage(const char *what, const char *value) {
  errno = 0;
  fail("%s: %s", what, value);
}

static long number(const char *text, const char *option, long low, long high) {
  char *end = NULL;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < low || value > high) usage("bad number for", option);
  return value;
}

static void add_inherited(struct options *options, enum kind kind, char *text, const char *option) {
  char *equals = strchr(text, '=');
  if (equals == NULL || equals[1] == '\0') usage("expected FD=NAME for", option);
  if (options->inherited_count == MAX_ITEMS) usage("too many", option);
  *equals = '\0';
  struct inherited *item = &options->inherited[options->inherited_count++];
  item->kind = kind;
  item->target = (int)number(text, option, 3, MAX_TARGET);
  item->name = equals + 1;
  item->parked = -1;
}

/* Returns the index of the program to execute. */
static int parse(int argc, char **argv, struct options *options) {
  int at = 1;
  while (at < argc) {
    const char *option = argv[at];
    if (strcmp(option, "--") == 0) {
      if (at + 1 >= argc) usage("missing", "program");
      return at + 1;
    }
    if (at + 1 >= argc) usage("missing value for", option);
    char *value = argv[at + 1];
    if (strcmp(option, "--netns") == 0) {
      options->netns = value;
    } else if (strcmp(option, "--cgroup") == 0) {
      if (options->cgroup_count == MAX_ITEMS) usage("too many", option);
      options->cgroups[options->cgroup_count++] = value;
    } else if (strcmp(option, "--uid") == 0) {
      options->uid = number(value, option, 1, INT_MAX);
    } else if (strcmp(option, "--gid") == 0) {
      options->gid = number(value, option, 1, INT_MAX);
    } else if (strcmp(option, "--group") == 0) {
      options->group = number(value, option, 1, INT_MAX);
    } else if (strcmp(option, "--nofile") == 0) {
      options->nofile = number(value, option, 16, 1 << 20);
    } else if (strcmp(option, "--nice") == 0) {
      options->nice = number(value, option, 0, 19);
    } else if (strcmp(option, "--oom") == 0) {
      options->oom = number(value, option, 0, 1000);
    } else if (strcmp(option, "--dir") == 0) {
      add_inherited(options, KIND_DIR, value, option);
    } else if (strcmp(option, "--file") == 0) {
      add_inherited(options, KIND_FILE, value, option);
    } else if (strcmp(option, "--tap") == 0) {
      add_inherited(options, KIND_TAP, value, option);
    } else {
      usage("unknown option", option);
    }
    at += 2;
  }
  usage("missing", "-- PROGRAM");
}

static void write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail("open %s", path);
  ssize_t length = (ssize_t)strlen(text);
  if (write(fd, text, (size_t)length) != length) fail("write %s", path);
  close(fd);
}

static void join_cgroup(const char *directory) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/cgroup.procs", directory) >= (int)sizeof path) usage("path too long", directory);
  /* "0" is the writing process itself, in both versions and in every pid namespace. */
  write_file(path, "0");
}

static void enter_netns(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("open %s", path);
  if (setns(fd, CLONE_NEWNET) != 0) fail("setns %s", path);
  close(fd);
}

static int open_tap(const char *name) {
  struct ifreq request;
  if (strlen(name) >= sizeof request.ifr_name) usage("tap name too long", name);
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  if (fd < 0) fail("open /dev/net/tun");
  memset(&request, 0, sizeof request);
  memcpy(request.ifr_name, name, strlen(name));
  request.ifr_flags = TUN_TAP | TUN_NO_PI | TUN_VNET_HDR;
  if (ioctl(fd, TUN_SET_IFF, &request) != 0) fail("attach tap %s", name);
  return fd;
}

static int open_inherited(const struct inherited *item) {
  if (item->kind == KIND_TAP) return open_tap(item->name);
  int flags = item->kind == KIND_DIR ? O_PATH | O_DIRECTORY : O_RDONLY;
  int fd = open(item->name, flags);
  if (fd < 0) fail("open %s", item->name);
  return fd;
}

static int parking_slot(int index) { return PARKING + index; }

static void park(struct options *options) {
  for (int i = 0; i < options->inherited_count; i++) {
    struct inherited *item = &options->inherited[i];
    int fd = open_inherited(item);
    item->parked = parking_slot(i);
    if (dup2(fd, item->parked) < 0) fail("dup2");
    close(fd);
  }
}

static void close_range_or_fail(unsigned first, unsigned last) {
  if (syscall(SYS_close_range, first, last, 0) != 0) fail("close_range");
}

static void settle_descriptors(struct options *options) {
  close_range_or_fail(3, PARKING - 1);
  close_range_or_fail((unsigned)parking_slot(options->inherited_count), ~0U);
  for (int i = 0; i < options->inherited_count; i++) {
    const struct inherited *item = &options->inherited[i];
    if (dup2(item->parked, item->target) < 0) fail("dup2");
    close(item->parked);
  }
}

static void limit(int resource, rlim_t value, const char *name) {
  struct rlimit limits = {value, value};
  if (setrlimit(resource, &limits) != 0) fail("setrlimit %s", name);
}

static void drop_privileges(const struct options *options) {
  if (options->gid != UNSET) {
    gid_t group = (gid_t)options->group;
    if (setgroups(options->group == UNSET ? 0 : 1, &group) != 0) fail("setgroups");
    gid_t gid = (gid_t)options->gid;
    if (setresgid(gid, gid, gid) != 0) fail("setresgid");
  }
  if (options->uid != UNSET) {
    uid_t uid = (uid_t)options->uid;
    if (setresuid(uid, uid, uid) != 0) fail("setresuid");
    if (setuid(0) == 0) usage("privileges", "could be regained");
  }
  /* An engine writes here and there in large areas; a huge page for each place is memory nobody uses. */
  if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) fail("huge pages off");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
}

int main(int argc, char **argv) {
  struct options options = {.uid = UNSET, .gid = UNSET, .group = UNSET, .nofile = UNSET, .nice = UNSET, .oom = UNSET};
  int program = parse(argc, argv, &options);

  /* The server may have made us a session leader already; then setsid fails and nothing is left to do. */
  if (setsid() < 0 && errno != EPERM) fail("setsid");
  if (options.oom != UNSET) {
    char text[24];
    snprintf(text, sizeof text, "%ld", options.oom);
    write_file("/proc/self/oom_score_adj", text);
  }
  if (options.nice != UNSET && setpriority(PRIO_PROCESS, 0, (int)options.nice) != 0) fail("setpriority");
  for (int i = 0; i < options.cgroup_count; i++) join_cgroup(options.cgroups[i]);
  if (options.netns != NULL) enter_netns(options.netns);
  park(&options);
  settle_descriptors(&options);
  if (options.nofile != UNSET) limit(RLIMIT_NOFILE, (rlim_t)options.nofile, "nofile");
  limit(RLIMIT_CORE, 0, "core");
  umask(077);
  drop_privileges(&options);

  execvp(argv[program], argv + program);
  fprintf(stderr, "aenv-launch: exec %s: %s\n", argv[program], strerror(errno));
  return 126;
}
