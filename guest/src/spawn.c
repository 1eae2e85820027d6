#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "body.h"
#include "dispatch.h"
#include "helper.h"
#include "protocol.gen.h"
#include "user.h"
#include "util.h"

#define DEFAULT_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define TERMINAL_GROUP 5

/* What the request asks for; the order of its fields is that of PROTOCOL.md. */
struct spawn_request {
  char *user;
  char **argv;
  char **env;
  char *cwd;
  char *default_cwd;
  uint32_t flags;
  uint16_t cols;
  uint16_t rows;
};

__attribute__((noreturn)) static void fail(uint32_t status, int error, const char *message) {
  struct buffer body = {0};
  put_u32(&body, status);
  put_u32(&body, (uint32_t)error);
  put_string(&body, message);
  helper_send(SPAWN_FAILURE, buffer_head(&body), buffer_length(&body));
  _exit(127);
}

static struct spawn_request parse(const struct spawn_plan *plan) {
  struct reader reader = reader_of(plan->body, plan->length);
  struct spawn_request request = {.user = take_string(&reader)};
  request.argv = take_strings(&reader);
  request.env = take_strings(&reader);
  request.cwd = take_string(&reader);
  request.default_cwd = take_string(&reader);
  request.flags = take_u32(&reader);
  request.cols = take_u16(&reader);
  request.rows = take_u16(&reader);
  return request;
}

static char *join(const char *first, const char *middle, const char *last) {
  size_t size = strlen(first) + strlen(middle) + strlen(last) + 1;
  char *text = must_alloc(size);
  snprintf(text, size, "%s%s%s", first, middle, last);
  return text;
}

/* Adds NAME=value, replacing an earlier value of the same name. */
static void set_variable(char **environment, size_t *count, char *variable) {
  size_t name = strcspn(variable, "=") + 1;
  for (size_t i = 0; i < *count; i++) {
    if (strncmp(environment[i], variable, name) == 0) {
      environment[i] = variable;
      return;
    }
  }
  environment[(*count)++] = variable;
}

static char **build_environment(const struct user *user, char **extra) {
  size_t extra_count = 0;
  while (extra[extra_count] != NULL) extra_count++;
  char **environment = must_alloc((extra_count + 5) * sizeof *environment);
  size_t count = 0;
  set_variable(environment, &count, join(DEFAULT_PATH, "", ""));
  set_variable(environment, &count, join("HOME", "=", user->home));
  set_variable(environment, &count, join("USER", "=", user->name));
  set_variable(environment, &count, join("LOGNAME", "=", user->name));
  for (size_t i = 0; i < extra_count; i++) {
    if (extra[i][0] == '=' || strchr(extra[i], '=') == NULL) fail(STATUS_INVALID, 0, "env must be NAME=value");
    set_variable(environment, &count, extra[i]);
  }
  return environment;
}

static bool is_directory(const char *path) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Looked up before the privileges go, so that a directory the user may not enter is told from a missing one. */
static const char *choose_cwd(const struct spawn_request *request, const struct user *user) {
  const char *cwd = request->cwd;
  if (cwd[0] == '\0') {
    cwd = request->default_cwd[0] != '\0' && is_directory(request->default_cwd) ? request->default_cwd : user->home;
  } else if (cwd[0] != '/') {
    cwd = join(user->home, "/", cwd);
  }
  if (!is_directory(cwd)) fail(STATUS_BAD_CWD, errno, cwd);
  return cwd;
}

/* The user owns what its process reads and writes, so that reopening /dev/stdout or /dev/tty works. */
static void own_stdio(const struct spawn_request *request, const struct user *user) {
  if ((request->flags & SPAWN_PTY) != 0) {
    int ignored = fchown(HELPER_KEPT + SPAWN_TERMINAL, user->uid, TERMINAL_GROUP);
    (void)ignored;
    return;
  }
  for (int i = 0; i < 3; i++) {
    int ignored = fchown(HELPER_KEPT + i, user->uid, user->gid);
    (void)ignored;
  }
}

static void attach_stdio(const struct spawn_request *request) {
  if ((request->flags & SPAWN_PTY) != 0) {
    struct winsize size = {.ws_col = request->cols, .ws_row = request->rows};
    int terminal = HELPER_KEPT + SPAWN_TERMINAL;
    if (ioctl(terminal, TIOCSCTTY, 0) != 0) fail(STATUS_IO, errno, "controlling terminal");
    ioctl(terminal, TIOCSWINSZ, &size);
    for (int i = 0; i < 3; i++) dup2(terminal, i);
    return;
  }
  for (int i = 0; i < 3; i++) {
    if (dup2(HELPER_KEPT + i, i) >= 0) continue;
    /* Only stdin may be missing; /dev/null replaces whatever the agent itself reads from. */
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0 || dup2(nothing, i) < 0) fail(STATUS_IO, errno, "/dev/null");
  }
}

static void become(const struct user *user) {
  if (setgroups(user->group_count, user->groups) != 0 || setresgid(user->gid, user->gid, user->gid) != 0 ||
      setresuid(user->uid, user->uid, user->uid) != 0) {
    fail(STATUS_PERMISSION, errno, "cannot become the user");
  }
}

/* Runs argv[0], searched in the PATH of the new environment; returns the errno of the failure. */
static int execute(char **argv, char **environment) {
  if (argv[0] == NULL || argv[0][0] == '\0') return ENOENT;
  if (strchr(argv[0], '/') != NULL) {
    execve(argv[0], argv, environment);
    return errno;
  }
  const char *path = "";
  for (char **variable = environment; *variable != NULL; variable++) {
    if (strncmp(*variable, "PATH=", 5) == 0) path = *variable + 5;
  }
  int failure = ENOENT;
  while (*path != '\0') {
    size_t length = strcspn(path, ":");
    if (length > 0) {
      char *directory = must_alloc(length + 1);
      memcpy(directory, path, length);
      execve(join(directory, "/", argv[0]), argv, environment);
      /* A program that exists but cannot run is the better answer than the missing ones behind it. */
      if (errno != ENOENT && errno != ENOTDIR && (failure == ENOENT || errno != EACCES)) failure = errno;
    }
    path += length;
    if (*path == ':') path++;
  }
  return failure;
}

void spawn_child(void *context) {
  const struct spawn_plan *plan = context;
  struct spawn_request request = parse(plan);
  write_control_file("/proc/self/oom_score_adj", "100");
  umask(022);
  setsid();

  struct user_tables tables = user_tables_load();
  struct user user;
  if (!user_find(&tables, request.user, &user)) fail(STATUS_UNKNOWN_USER, 0, request.user);
  struct buffer identity = {0};
  put_u32(&identity, user.uid);
  put_u32(&identity, user.gid);
  helper_send(SPAWN_IDENTITY, buffer_head(&identity), buffer_length(&identity));

  char **environment = build_environment(&user, request.env);
  const char *cwd = choose_cwd(&request, &user);
  own_stdio(&request, &user);
  attach_stdio(&request);
  become(&user);
  /* Changing the user id took this back. */
  if (plan->die_with_agent) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (chdir(cwd) != 0) fail(errno == EACCES ? STATUS_PERMISSION : STATUS_BAD_CWD, errno, cwd);
  int error = execute(request.argv, environment);
  const char *program = request.argv[0] != NULL ? request.argv[0] : "";
  fail(STATUS_EXEC_FAILED, error, join(program, ": ", strerror(error)));
}
