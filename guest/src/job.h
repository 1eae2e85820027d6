/* File requests: each runs in a forked worker, which may wait for storage as long as its deadline allows. */
#ifndef AENV_JOB_H
#define AENV_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct agent;
struct request;
struct job;

struct jobs {
  struct job *first; /* in order of arrival */
  struct job *last;
  size_t count;
};

/* A file request of the host. */
void job_request(struct agent *agent, const struct request *request);

/* The agent's own file work; `done` gets the status, and the errno and message behind it. It has its own worker at once. */
typedef void job_done(struct agent *agent, uint32_t status, int error, const char *message);
void job_run(struct agent *agent, uint16_t op, const uint8_t *body, size_t length, uint32_t deadline_ms, job_done *done);

#endif
