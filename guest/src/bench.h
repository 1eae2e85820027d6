/* The two bench operations: as much DATA as the channel carries, in either direction. */
#ifndef AENV_BENCH_H
#define AENV_BENCH_H

struct agent;
struct request;

void bench_source(struct agent *agent, const struct request *request);
void bench_sink(struct agent *agent, const struct request *request);

#endif
