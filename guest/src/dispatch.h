/* From frames to what they ask for. */
#ifndef AENV_DISPATCH_H
#define AENV_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder.h"

struct agent;

/* A REQUEST whose body has the layout of its operation. */
struct request {
  uint32_t stream;
  uint16_t op;
  uint32_t deadline_ms; /* 0 = none */
  const uint8_t *body;  /* valid during the call */
  size_t length;
};

/* Handles one frame; false when it breaks the protocol. */
bool dispatch_frame(struct agent *agent, const struct frame *frame);

/* The status that stands for an errno. */
uint32_t status_of_errno(int error);

#endif
