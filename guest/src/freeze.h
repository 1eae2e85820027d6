/* The cgroup v2 of the user processes: frozen while the guest is captured. */
#ifndef AENV_FREEZE_H
#define AENV_FREEZE_H

#include <stdbool.h>
#include <stdint.h>

#include "loop.h"

struct agent;

struct freezer {
  int user_cgroup;      /* directory; -1 = there is none, freezing does nothing */
  struct source events; /* its cgroup.events, watched while a freeze is under way */
  void (*frozen)(struct agent *agent);
};

/* Uses (and creates) the cgroup at `path`; NULL = none. false with errno when it cannot be used. */
bool freezer_open(struct freezer *freezer, const char *path);
void freezer_close(struct agent *agent);
/* Freezes; `frozen` is called when it is done, perhaps at once. false with errno when the kernel refused. */
bool freezer_freeze(struct agent *agent, void (*frozen)(struct agent *agent));
/* Thaws, also a freeze under way. */
void freezer_thaw(struct agent *agent);
/* Number of processes in the cgroup and below. */
uint32_t freezer_count(const struct freezer *freezer);

#endif
