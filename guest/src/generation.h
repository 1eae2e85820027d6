/* Quiesce and activate: the two ends of a capture, and the beginning of each generation of a sandbox. */
#ifndef AENV_GENERATION_H
#define AENV_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "files.h"
#include "loop.h"
#include "stream.h"

struct agent;
struct request;

enum generation_state {
  GENERATION_RUNNING,
  GENERATION_FREEZING, /* a quiesce is under way */
  GENERATION_QUIESCED,
};

struct generation {
  enum generation_state state;
  struct stream quiesce; /* of the request, until it is answered */
  bool settles;          /* of the quiesce under way: its disk is written before the answer */
  unsigned syncs;        /* workers that write it; more than one only after a settle was given up */
  uint32_t lease_ms;
  uint64_t freeze_started_ns;
  uint32_t freeze_deadline_ms;
  struct timer freeze_deadline;
  struct timer lease;
  struct stream activation; /* of an activate whose files are being written */
  unsigned writers;         /* workers that write such files; more than one only after a resync in between */
  struct memory_devices memory;
};

void generation_open(struct generation *generation);

void generation_quiesce(struct agent *agent, const struct request *request);
/* A quiesce after which the root file system is on its disk: nothing but memory is lost with the guest. */
void generation_settle(struct agent *agent, const struct request *request);
void generation_activate(struct agent *agent, const struct request *request);
/* Ends a quiesce, or one under way, without an answer. */
void generation_thaw(struct agent *agent);
/* A new connection. A frozen guest may be a copy that was just restored: its processes must not run before activate has
 * reseeded the random numbers, so it stays frozen for another lease. */
void generation_resync(struct agent *agent);

#endif
