/* The one epoll loop: file descriptors and timers. Nothing that runs in it may wait for anything but its epoll_wait. */
#ifndef AENV_LOOP_H
#define AENV_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/* A file descriptor with its callback; embedded in its owner. */
struct source {
  int fd; /* -1 = none */
  uint32_t events;
  bool registered;
  void (*ready)(struct source *source, uint32_t events);
};

/* A one-shot timer on CLOCK_MONOTONIC; embedded in its owner. */
struct timer {
  uint64_t due_ns; /* 0 = not armed */
  void (*fire)(struct timer *timer);
  struct timer *next;
};

#define LOOP_BATCH 64

struct loop {
  int epoll;
  struct source clock; /* one timerfd, set to the first timer */
  struct timer *timers; /* by due time */
  struct epoll_event batch[LOOP_BATCH];
  int batch_length;
  int batch_next;
  bool unfinished; /* somebody stopped before EAGAIN: look again without waiting */
};

void loop_open(struct loop *loop);
void loop_close(struct loop *loop);

/* Starts to watch a source, or changes what is watched. `events` may be 0: EPOLLERR and EPOLLHUP still arrive. */
void loop_watch(struct loop *loop, struct source *source, uint32_t events);
/* Stops to watch; also takes back events of the current batch, so that the owner may be freed. */
void loop_unwatch(struct loop *loop, struct source *source);
/* Stops to watch and closes the descriptor. */
void loop_close_source(struct loop *loop, struct source *source);

void loop_arm(struct loop *loop, struct timer *timer, uint64_t due_ns);
void loop_disarm(struct loop *loop, struct timer *timer);

/* Waits once and runs what became ready. */
void loop_turn(struct loop *loop);

#endif
