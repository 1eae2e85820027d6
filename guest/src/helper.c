#define _GNU_SOURCE
#include "helper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "protocol.gen.h"
#include "util.h"

/* Message: u8 kind, u32 length, payload. */
#define MESSAGE_HEADER 5u
#define MESSAGE_LIMIT (MAX_CONTROL + 64u)

/* Descriptors are parked up here while they are put in place. */
#define PARKING 64

/* clone3(2); not in the C library's headers everywhere. */
#define CLONE3_INTO_CGROUP 0x200000000ull
struct clone3_arguments {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* Forks straight into the user cgroup: moving a process there later costs a grace period of tens of milliseconds. */
static pid_t fork_into(int cgroup) {
  if (cgroup >= 0) {
    struct clone3_arguments arguments = {
        .flags = CLONE3_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)cgroup,
    };
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
  }
  return fork();
}

static void reset_signals(void) {
  for (int number = 1; number < _NSIG; number++) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Leaves the child with its own descriptors only: a pipe end of another process kept open here would hold back its EOF. */
static void arrange_descriptors(int control, const struct helper_plan *plan) {
  int parked[HELPER_MAX_KEPT];
  int parked_control = fcntl(control, F_DUPFD_CLOEXEC, PARKING);
  for (size_t i = 0; i < plan->keep_count; i++) {
    parked[i] = plan->keep[i] >= 0 ? fcntl(plan->keep[i], F_DUPFD_CLOEXEC, PARKING) : -1;
  }
  dup3(parked_control, HELPER_CONTROL, O_CLOEXEC);
  for (size_t i = 0; i < plan->keep_count; i++) {
    int place = HELPER_KEPT + (int)i;
    if (parked[i] >= 0) {
      dup3(parked[i], place, O_CLOEXEC);
    } else {
      close(place);
    }
  }
  syscall(SYS_close_range, HELPER_KEPT + (unsigned)plan->keep_count, ~0u, 0);
}

static void handle_messages(struct helper *helper) {
  while (buffer_length(&helper->incoming) >= MESSAGE_HEADER) {
    const uint8_t *head = buffer_head(&helper->incoming);
    uint32_t length = load_u32(head + 1);
    if (length > MESSAGE_LIMIT) {
      helper_kill(helper);
      buffer_clear(&helper->incoming);
      return;
    }
    if (buffer_length(&helper->incoming) - MESSAGE_HEADER < length) return;
    helper->ops->message(helper, head[0], head + MESSAGE_HEADER, length);
    buffer_consume(&helper->incoming, MESSAGE_HEADER + length);
  }
}

/* Reads what is there; false at the end of the socket. */
static bool read_messages(struct helper *helper, size_t limit) {
  size_t total = 0;
  while (total < limit) {
    ssize_t got = read(helper->control.fd, buffer_reserve(&helper->incoming, 8192), 8192);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    helper->incoming.end += (size_t)got;
    total += (size_t)got;
    handle_messages(helper);
  }
  return true;
}

static void close_control(struct helper *helper) {
  loop_close_source(&helper->agent->loop, &helper->control);
  if (helper->ops->closed != NULL) helper->ops->closed(helper);
}

static void control_event(struct source *source, uint32_t events) {
  (void)events;
  struct helper *helper = container_of(source, struct helper, control);
  if (!read_messages(helper, 65536)) close_control(helper);
}

bool helper_start(struct helper *helper, struct agent *agent, const struct helper_ops *ops, const struct helper_plan *plan) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  pid_t parent = getpid();
  pid_t pid = fork_into(plan->user ? agent->freezer.user_cgroup : -1);
  if (pid < 0) {
    int error = errno;
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return false;
  }
  if (pid == 0) {
    reset_signals();
    if (!plan->user || !agent->is_init) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
    }
    arrange_descriptors(ends[1], plan);
    plan->run(plan->context);
    _exit(1);
  }
  close(ends[1]);
  set_nonblocking(ends[0]);
  helper->agent = agent;
  helper->ops = ops;
  helper->pid = pid;
  helper->control = (struct source){.fd = ends[0], .ready = control_event};
  helper->next = agent->helpers;
  agent->helpers = helper;
  loop_watch(&agent->loop, &helper->control, EPOLLIN);
  return true;
}

void helper_kill(struct helper *helper) {
  if (helper->pid > 0) kill(helper->pid, SIGKILL);
}

void helper_pause(struct helper *helper, bool pause) {
  if (helper->control.fd < 0) return;
  if (pause) {
    loop_unwatch(&helper->agent->loop, &helper->control);
  } else {
    loop_watch(&helper->agent->loop, &helper->control, EPOLLIN);
  }
}

static void reap(struct agent *agent, pid_t pid, int status) {
  struct helper **at = &agent->helpers;
  while (*at != NULL && (*at)->pid != pid) at = &(*at)->next;
  struct helper *helper = *at;
  if (helper == NULL) return; /* an orphan of somebody */
  *at = helper->next;
  helper->pid = 0;
  if (helper->control.fd >= 0) {
    read_messages(helper, SIZE_MAX);
    close_control(helper);
  }
  buffer_free(&helper->incoming);
  helper->ops->reaped(helper, status);
}

void helpers_reap(struct agent *agent) {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) reap(agent, pid, status);
}

void helpers_kill_all(struct agent *agent) {
  for (struct helper *helper = agent->helpers; helper != NULL; helper = helper->next) helper_kill(helper);
}

void helper_send(uint8_t kind, const void *payload, size_t length) {
  uint8_t header[MESSAGE_HEADER] = {kind};
  store_u32(header + 1, (uint32_t)length);
  if (write_all(HELPER_CONTROL, header, sizeof header) != 0 || write_all(HELPER_CONTROL, payload, length) != 0) _exit(1);
}
