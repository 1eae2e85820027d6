/* The child side of a spawn: from the fork to the exec. */
#ifndef AENV_SPAWN_H
#define AENV_SPAWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Messages to the agent. */
#define SPAWN_IDENTITY 'I' /* u32 uid, u32 gid */
#define SPAWN_FAILURE 'F'  /* u32 status, u32 errno, str message */

/* Kept descriptors: the terminal, or the three ends of stdin (-1 = /dev/null), stdout and stderr. */
#define SPAWN_TERMINAL 0

struct spawn_plan {
  const uint8_t *body; /* of the REQUEST, its layout was checked */
  size_t length;
  bool die_with_agent;
};

/* The `run` of a helper; `context` is a struct spawn_plan. */
void spawn_child(void *context);

#endif
