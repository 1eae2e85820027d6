/* The table of spawned processes (PROTOCOL.md, "Processes"). */
#ifndef AENV_PROCESS_H
#define AENV_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "flow.h"
#include "helper.h"
#include "loop.h"
#include "stream.h"

struct agent;
struct request;

enum process_state {
  PROCESS_STARTING, /* forked, exec not confirmed */
  PROCESS_RUNNING,
  PROCESS_EXITED,
  PROCESS_ABANDONED, /* nobody is told any more; waits to be reaped */
};

struct process {
  struct agent *agent;
  struct process *next;
  struct process *previous;
  struct helper helper;
  enum process_state state;
  uint32_t id;
  pid_t pid;
  uint32_t uid;
  uint32_t gid;
  uint32_t flags;
  uint8_t *tag;
  uint32_t tag_length;
  uint8_t *config;
  uint32_t config_length;
  bool identified;  /* uid and gid are known */
  uint32_t failure; /* status; what kept it from starting */
  int failure_errno;
  char *failure_message;
  struct stream control;
  struct stream in_stream;
  struct stream out_stream;
  struct stream err_stream;
  struct inflow in;
  struct outflow out;
  struct outflow err;
  int ends[3]; /* the agent's ends of stdin, stdout and stderr until the flows take them */
  struct timer start_deadline;
  struct timer kill_deadline;
  struct timer forget;
  bool remembered; /* the 30 s are not over */
  int32_t exit_code;
  uint32_t exit_signal;
  uint32_t exit_reason;
};

struct processes {
  struct process *first; /* in order of their start */
  struct process *last;
  size_t count;
  size_t noted; /* bytes of all tags and configs: they must fit into one answer */
};

/* The operations. */
void process_spawn(struct agent *agent, const struct request *request);
void process_signal(struct agent *agent, const struct request *request);
void process_resize(struct agent *agent, const struct request *request);
void process_list(struct agent *agent, const struct request *request);

/* Ends a spawn that was not answered yet: kills the child, tells nobody. */
void process_abandon(struct process *process);
/* Frees an exited process once it is forgotten: when its time is over and no output is left. Until then a new connection must
 * be able to find the streams, or whatever holds them open would wait for credit for ever. */
void process_forget_if_over(struct process *process);

/* process-streams.c: registers the streams of a process that has its `ends`, and takes them all back. */
void process_open_streams(struct process *process);
void process_end_streams(struct process *process);

#endif
