/* The guest's clock, random numbers and load. */
#ifndef AENV_SYSTEM_H
#define AENV_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

struct agent;
struct request;

/* CPU time at the former metrics request, in ticks. */
struct cpu_sample {
  uint64_t total;
  uint64_t idle;
};

void system_set_clock(struct agent *agent, const struct request *request);
void system_add_entropy(struct agent *agent, const struct request *request);
void system_metrics(struct agent *agent, const struct request *request);

/* Credits the bytes to the kernel's generator and makes it use them now; -1 with errno. */
int system_reseed(const uint8_t *bytes, size_t length);
/* Sets CLOCK_REALTIME; -1 with errno. */
int system_step_clock(uint64_t wall);

#endif
