/* Child processes of the agent that talk to it over a socket: file workers, watchers, and processes until they exec. */
#ifndef AENV_HELPER_H
#define AENV_HELPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "buffer.h"
#include "loop.h"

struct agent;
struct helper;

struct helper_ops {
  /* A message of the child. May stop the helper but not free it. */
  void (*message)(struct helper *helper, uint8_t kind, const uint8_t *payload, size_t length);
  /* The child closed its end; NULL = of no interest. */
  void (*closed)(struct helper *helper);
  /* Reaped, and every message was delivered before. May free the helper. */
  void (*reaped)(struct helper *helper, int status);
};

struct helper {
  struct agent *agent;
  const struct helper_ops *ops;
  pid_t pid; /* 0 = not running */
  struct source control;
  struct buffer incoming;
  struct helper *next;
};

/* What a child does. It runs with signals at their defaults, its socket as descriptor HELPER_CONTROL and the kept
 * descriptors from HELPER_KEPT on, all of them close-on-exec; no other descriptor of the agent but 0-2. */
struct helper_plan {
  void (*run)(void *context); /* must not return */
  void *context;
  const int *keep;
  size_t keep_count; /* at most HELPER_MAX_KEPT; -1 entries stay closed */
  bool user;         /* a process of the user: in the cgroup that quiesce freezes */
};

#define HELPER_CONTROL 3
#define HELPER_KEPT 4
#define HELPER_MAX_KEPT 4

/* Forks; false with errno when that is impossible. */
bool helper_start(struct helper *helper, struct agent *agent, const struct helper_ops *ops, const struct helper_plan *plan);
void helper_kill(struct helper *helper);
/* Stops or resumes the delivery of messages; the child waits when the socket is full. */
void helper_pause(struct helper *helper, bool pause);
/* Reaps every dead child: helpers, and orphans that nobody else waits for. */
void helpers_reap(struct agent *agent);
/* SIGKILL for all of them, at the end of an agent that is not PID 1. */
void helpers_kill_all(struct agent *agent);

/* In the child: sends one message. Ends the child when the agent is gone. */
void helper_send(uint8_t kind, const void *payload, size_t length);

#endif
