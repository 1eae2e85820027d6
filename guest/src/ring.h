/*
 * Bytes between the agent and a file worker through shared memory, one direction. A pipe wakes its reader for every piece, and
 * waking a process on another CPU is what costs most in an emulated guest; here each side is woken only when it waits and there
 * is enough to do.
 * Neither side trusts the other: whatever stands in the shared memory, a piece lies within the ring, and a side that breaks the
 * rules can make the transfer stall or carry nonsense, nothing else.
 */
#ifndef AENV_RING_H
#define AENV_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_SIZE (512u * 1024)

struct ring_state;

struct ring {
  struct ring_state *state; /* NULL = closed */
  uint8_t *data;
  int filled;         /* eventfd that wakes the consumer */
  int drained;        /* eventfd that wakes the producer */
  uint32_t own_count; /* bytes this side has published or consumed; the shared copy is for the other side */
};

/* When a waiting consumer is woken. */
enum ring_wake {
  RING_AT_ONCE,
  RING_WHEN_WORTHWHILE, /* a good part of the ring is filled, or it has ended */
};

/* Makes a ring that is inherited by fork, one process for each side; false with errno. */
bool ring_open(struct ring *ring);
/* Keeps the ring out of all later forks, whose processes would hold its memory as long as they live. */
void ring_keep_from_forks(const struct ring *ring);
void ring_close(struct ring *ring);

/* The producer's side: a contiguous free piece, and how much of it was filled. */
uint8_t *ring_free(const struct ring *ring, size_t *length);
void ring_publish(struct ring *ring, size_t length, enum ring_wake wake);
/* Nothing more will come: the content is complete. */
void ring_end(struct ring *ring);
/* Whether the ring is (still) full; if so `drained` becomes readable when half of it is free. Else there is a free piece now. */
bool ring_await_space(struct ring *ring);

/* The consumer's side: a contiguous filled piece, and how much of it was used. */
const uint8_t *ring_filled(const struct ring *ring, size_t *length);
void ring_consume(struct ring *ring, size_t length);
/* Whether the end was told: what is filled from then on is the last. */
bool ring_has_ended(const struct ring *ring);
/* Whether the ring is (still) empty and has not ended; if so `filled` becomes readable when that changes. */
bool ring_await_data(struct ring *ring);

/* In the worker: waits for an eventfd. */
void ring_sleep(int event);

/* memcpy for much. */
void bulk_copy(uint8_t *to, const uint8_t *from, size_t length);

#endif
