#include "loop.h"

#include <errno.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "util.h"

static void set_clock(struct loop *loop) {
  uint64_t due = loop->timers != NULL ? loop->timers->due_ns : 0;
  struct itimerspec when = {
      .it_value = {.tv_sec = (time_t)(due / NS_PER_S), .tv_nsec = (long)(due % NS_PER_S)},
  };
  timerfd_settime(loop->clock.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void run_timers(struct source *clock, uint32_t events) {
  (void)events;
  struct loop *loop = container_of(clock, struct loop, clock);
  uint64_t expirations;
  ssize_t ignored = read(clock->fd, &expirations, sizeof expirations);
  (void)ignored;
  uint64_t now = monotonic_ns();
  while (loop->timers != NULL && loop->timers->due_ns <= now) {
    struct timer *timer = loop->timers;
    loop->timers = timer->next;
    timer->due_ns = 0;
    timer->fire(timer);
  }
  set_clock(loop);
}

void loop_open(struct loop *loop) {
  memset(loop, 0, sizeof *loop);
  loop->epoll = epoll_create1(EPOLL_CLOEXEC);
  loop->clock.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (loop->epoll < 0 || loop->clock.fd < 0) die("cannot create the event loop: %s", strerror(errno));
  loop->clock.ready = run_timers;
  loop_watch(loop, &loop->clock, EPOLLIN);
}

void loop_close(struct loop *loop) {
  loop_close_source(loop, &loop->clock);
  close_fd(&loop->epoll);
}

void loop_watch(struct loop *loop, struct source *source, uint32_t events) {
  if (source->fd < 0 || (source->registered && source->events == events)) return;
  struct epoll_event event = {.events = events, .data.ptr = source};
  int operation = source->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(loop->epoll, operation, source->fd, &event) != 0) {
    die("cannot watch a descriptor: %s", strerror(errno));
  }
  source->registered = true;
  source->events = events;
}

void loop_unwatch(struct loop *loop, struct source *source) {
  if (!source->registered) return;
  epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
  source->registered = false;
  for (int i = loop->batch_next; i < loop->batch_length; i++) {
    if (loop->batch[i].data.ptr == source) loop->batch[i].data.ptr = NULL;
  }
}

void loop_close_source(struct loop *loop, struct source *source) {
  loop_unwatch(loop, source);
  close_fd(&source->fd);
}

void loop_arm(struct loop *loop, struct timer *timer, uint64_t due_ns) {
  loop_disarm(loop, timer);
  timer->due_ns = due_ns > 0 ? due_ns : 1;
  struct timer **at = &loop->timers;
  while (*at != NULL && (*at)->due_ns <= timer->due_ns) at = &(*at)->next;
  timer->next = *at;
  *at = timer;
  if (loop->timers == timer) set_clock(loop);
}

void loop_disarm(struct loop *loop, struct timer *timer) {
  if (timer->due_ns == 0) return;
  /* A timerfd that fires for a timer taken back finds nothing due, so it need not be set anew here. */
  for (struct timer **at = &loop->timers; *at != NULL; at = &(*at)->next) {
    if (*at == timer) {
      *at = timer->next;
      break;
    }
  }
  timer->due_ns = 0;
}

void loop_turn(struct loop *loop) {
  int timeout = loop->unfinished ? 0 : -1;
  loop->unfinished = false;
  int count = epoll_wait(loop->epoll, loop->batch, LOOP_BATCH, timeout);
  if (count < 0) {
    if (errno == EINTR) return;
    die("epoll_wait: %s", strerror(errno));
  }
  loop->batch_length = count;
  for (loop->batch_next = 0; loop->batch_next < count;) {
    struct epoll_event event = loop->batch[loop->batch_next++];
    struct source *source = event.data.ptr;
    if (source != NULL) source->ready(source, event.events);
  }
  loop->batch_length = 0;
}
