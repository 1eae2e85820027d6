#define _GNU_SOURCE
#include "shutdown.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "util.h"

/* How long processes get to end after SIGTERM, and write-back may take, milliseconds: a sandbox that is switched off is gone
 * within two seconds. */
#define GRACE_MS 200
#define SYNC_MS 1000

/* As busybox init has it: USR1 halts, USR2 (and a failing power supply) powers off, TERM and INT reboot. */
#define SIGNAL_HALT SIGUSR1
#define SIGNAL_POWER_OFF SIGUSR2
#define SIGNAL_REBOOT SIGTERM

static bool is_reboot(int number) { return number == SIGNAL_REBOOT || number == SIGINT; }

/* Reaps until no child is left or the time is over. */
static void wait_for_children(int milliseconds) {
  uint64_t end = monotonic_ns() + (uint64_t)milliseconds * NS_PER_MS;
  const struct timespec moment = {.tv_nsec = 5 * 1000 * 1000};
  while (monotonic_ns() < end) {
    pid_t pid = waitpid(-1, NULL, WNOHANG);
    if (pid < 0 && errno == ECHILD) return;
    if (pid == 0) nanosleep(&moment, NULL);
  }
}

void shutdown_now(int number) {
  kill(-1, SIGTERM);
  kill(-1, SIGCONT);
  wait_for_children(GRACE_MS);
  kill(-1, SIGKILL);
  wait_for_children(GRACE_MS);
  /* Storage that hangs must not keep the machine: write-back has its own process and a limit. */
  if (fork() == 0) {
    sync();
    _exit(0);
  }
  wait_for_children(SYNC_MS);
  reboot(is_reboot(number) ? RB_AUTOBOOT : RB_POWER_OFF);
  die("the kernel refused to stop: %s", strerror(errno));
}

bool shutdown_is_command(const char *name) {
  return strcmp(name, "poweroff") == 0 || strcmp(name, "reboot") == 0 || strcmp(name, "halt") == 0 ||
         strcmp(name, "shutdown") == 0;
}

int shutdown_command(const char *name, char **arguments) {
  int number = SIGNAL_POWER_OFF;
  bool force = false;
  if (strcmp(name, "reboot") == 0) number = SIGNAL_REBOOT;
  if (strcmp(name, "halt") == 0) number = SIGNAL_HALT;
  for (; *arguments != NULL; arguments++) {
    if (strcmp(*arguments, "-r") == 0 || strcmp(*arguments, "--reboot") == 0) number = SIGNAL_REBOOT;
    /* shutdown(8) knows no "force", and takes times and messages that mean nothing here. */
    bool forces = strcmp(*arguments, "-f") == 0 || strcmp(*arguments, "--force") == 0;
    if (forces && strcmp(name, "shutdown") != 0) force = true;
  }
  if (force) {
    sync();
    if (reboot(is_reboot(number) ? RB_AUTOBOOT : RB_POWER_OFF) == 0) return 0;
  } else if (kill(1, number) == 0) {
    return 0;
  }
  fprintf(stderr, "%s: %s\n", name, strerror(errno));
  return 1;
}
