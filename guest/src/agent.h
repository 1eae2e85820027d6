/* Everything the agent knows; one per process, made by main. */
#ifndef AENV_AGENT_H
#define AENV_AGENT_H

#include <stdbool.h>

#include "channel.h"
#include "freeze.h"
#include "generation.h"
#include "helper.h"
#include "job.h"
#include "loop.h"
#include "port.h"
#include "process.h"
#include "stream.h"
#include "system.h"
#include "watch.h"

struct agent {
  struct loop loop;
  struct channel channel;
  struct streams streams;
  struct helper *helpers;
  struct processes processes;
  struct jobs jobs;
  struct watches watches;
  struct ports ports;
  struct freezer freezer;
  struct generation generation;
  struct cpu_sample cpu;
  bool is_init;     /* PID 1: the end of the agent ends everything else too */
  bool owns_system; /* clock and host name are the sandbox's, not those of the machine the agent is tested on */
};

/* Tells every stream, and the generation of a resync. */
void agent_upheaval(struct agent *agent, enum upheaval what);

#endif
