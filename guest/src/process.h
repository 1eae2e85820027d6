/* The table of spawned processes and their streams (PROTOCOL.md, "Processes"). */
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
struct process;

struct processes {
  struct process *first; /* newest first */
  size_t count;
  size_t noted; /* bytes of all tags and configs: they must fit into one answer */
};

void process_spawn(struct agent *agent, const struct request *request);
void process_signal(struct agent *agent, const struct request *request);
void process_resize(struct agent *agent, const struct request *request);
void process_list(struct agent *agent, const struct request *request);

#endif
