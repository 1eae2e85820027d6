/*
 * aenv-guest: the agent in a sandbox.
 *
 *   (as PID 1 of an initramfs)        sets the guest up and serves the virtio port `aenv.agent`
 *   aenv-guest --listen PATH [...]    serves a unix socket: containers and tests
 *   poweroff | reboot | halt | shutdown   (by that name) asks PID 1 for it; an image links these names in /usr/sbin to a copy of
 *                                     this program at /usr/lib/aenv/aenv-guest
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"
#include "boot.h"
#include "shutdown.h"
#include "util.h"

#define GUEST_USER_CGROUP "/sys/fs/cgroup/user"

struct options {
  const char *listen; /* NULL = virtio port */
  const char *cgroup;
  bool no_init;
};

struct signals {
  struct source source;
  struct agent *agent;
  bool ended; /* told to end, which for a container's PID 1 is also what `poweroff` does */
};

void agent_upheaval(struct agent *agent, enum upheaval what) {
  streams_upheaval(&agent->streams, what);
  if (what == UPHEAVAL_RESYNC) generation_resync(agent);
}

static void signals_ready(struct source *source, uint32_t events) {
  (void)events;
  struct signals *signals = container_of(source, struct signals, source);
  struct signalfd_siginfo info;
  while (read(source->fd, &info, sizeof info) == (ssize_t)sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (signals->agent->is_init && signals->agent->channel.is_port) shutdown_now((int)info.ssi_signo);
    signals->ended = true;
  }
  helpers_reap(signals->agent);
}

static void signals_open(struct signals *signals, struct agent *agent) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  sigaddset(&set, SIGPWR);
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  *signals = (struct signals){.agent = agent};
  signals->source = (struct source){.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), .ready = signals_ready};
  if (signals->source.fd < 0) die("signalfd: %s", strerror(errno));
  loop_watch(&agent->loop, &signals->source, EPOLLIN);
}

static int listen_on(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) die("the socket path is too long: %s", path);
  strcpy(address.sun_path, path);
  unlink(path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  mode_t mask = umask(077);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4) != 0) {
    die("cannot listen on %s: %s", path, strerror(errno));
  }
  umask(mask);
  return fd;
}

static struct options parse_options(char **arguments) {
  struct options options = {0};
  for (char **argument = arguments; *argument != NULL; argument++) {
    bool has_value = argument[1] != NULL;
    if (strcmp(*argument, "--listen") == 0 && has_value) {
      options.listen = *++argument;
    } else if (strcmp(*argument, "--cgroup") == 0 && has_value) {
      options.cgroup = *++argument;
    } else if (strcmp(*argument, "--no-init") == 0) {
      options.no_init = true;
    } else {
      die("usage: aenv-guest --listen PATH [--cgroup DIR] [--no-init]");
    }
  }
  if (options.listen == NULL) die("usage: aenv-guest --listen PATH [--cgroup DIR] [--no-init]");
  return options;
}

/* The agent may need a few descriptors for each process and connection. */
static void raise_limit_of_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/* Serves one channel until told to end; as PID 1 of a VM that never happens. */
static void serve(struct agent *agent, const struct options *options) {
  struct signals signals;
  raise_limit_of_files();
  loop_open(&agent->loop);
  signals_open(&signals, agent);
  generation_open(&agent->generation);
  /* A guest that runs out of memory shall lose a process of the user, never the agent. */
  write_control_file("/proc/self/oom_score_adj", "-1000");
  if (!freezer_open(&agent->freezer, options->cgroup)) die("cannot use the cgroup %s: %s", options->cgroup, strerror(errno));
  if (options->listen != NULL) {
    channel_open_listener(&agent->channel, agent, listen_on(options->listen));
  } else {
    channel_open_port(&agent->channel, agent, boot_open_port());
  }
  while (!signals.ended) {
    channel_service(&agent->channel);
    watches_resume(agent);
    loop_turn(&agent->loop);
  }
  helpers_kill_all(agent);
  if (options->listen != NULL) unlink(options->listen);
}

int main(int count, char **arguments) {
  char *name = count > 0 ? basename(arguments[0]) : "";
  if (shutdown_is_command(name)) return shutdown_command(name, arguments + 1);
  struct agent agent = {0};
  struct options options = {0};
  agent.is_init = getpid() == 1;
  if (agent.is_init && (count < 2 || strcmp(name, "init") == 0)) {
    /*
     * The place for an image that declares an init of its own: after boot() the agent would fork, PID 1 exec the image's
     * /sbin/init, and the child go on with serve(), which does not need to be PID 1.
     */
    boot();
    options.cgroup = GUEST_USER_CGROUP;
    agent.owns_system = true;
  } else {
    options = parse_options(arguments + 1);
    agent.owns_system = !options.no_init;
  }
  serve(&agent, &options);
  /* Not a return: what the agent still holds stays reachable, so that a leak checker reports real leaks only. */
  exit(EXIT_SUCCESS);
}
