#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util.h"

/* Worth waking a consumer for, bytes. */
#define WORTHWHILE (RING_SIZE / 4)
#define STATE_SIZE 4096u

/* `written` and `read` count bytes and wrap around, as RING_SIZE divides their range; their difference is what the ring holds. */
struct ring_state {
  _Atomic uint32_t written;
  _Atomic uint32_t read;
  _Atomic uint32_t ended;
  _Atomic uint32_t producer_waits;
  _Atomic uint32_t consumer_waits;
};

bool ring_open(struct ring *ring) {
  *ring = (struct ring){.filled = -1, .drained = -1};
  void *memory = mmap(NULL, STATE_SIZE + RING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  ring->state = memory;
  ring->data = (uint8_t *)memory + STATE_SIZE;
  ring->filled = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ring->drained = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (ring->filled >= 0 && ring->drained >= 0) return true;
  int error = errno;
  ring_close(ring);
  errno = error;
  return false;
}

void ring_keep_from_forks(const struct ring *ring) { madvise(ring->state, STATE_SIZE + RING_SIZE, MADV_DONTFORK); }

void ring_close(struct ring *ring) {
  if (ring->state == NULL) return;
  munmap(ring->state, STATE_SIZE + RING_SIZE);
  ring->state = NULL;
  close_fd(&ring->filled);
  close_fd(&ring->drained);
}

static void wake(_Atomic uint32_t *waits, int event) {
  const uint64_t one = 1;
  if (atomic_exchange(waits, 0) == 0) return;
  ssize_t ignored = write(event, &one, sizeof one);
  (void)ignored;
}

/* What the ring holds as its producer and its consumer see it. The count of the other side is not taken for granted. */
static uint32_t held_after_producer(const struct ring *ring) {
  uint32_t bytes = ring->own_count - atomic_load(&ring->state->read);
  return minimum(bytes, RING_SIZE);
}

static uint32_t held_for_consumer(const struct ring *ring) {
  uint32_t bytes = atomic_load(&ring->state->written) - ring->own_count;
  return minimum(bytes, RING_SIZE);
}

uint8_t *ring_free(const struct ring *ring, size_t *length) {
  uint32_t at = ring->own_count % RING_SIZE;
  uint32_t room = RING_SIZE - held_after_producer(ring);
  *length = minimum(room, RING_SIZE - at);
  return ring->data + at;
}

void ring_publish(struct ring *ring, size_t length, enum ring_wake how) {
  ring->own_count += (uint32_t)length;
  atomic_store(&ring->state->written, ring->own_count);
  if (how == RING_AT_ONCE || held_after_producer(ring) >= WORTHWHILE) wake(&ring->state->consumer_waits, ring->filled);
}

void ring_end(struct ring *ring) {
  atomic_store(&ring->state->ended, 1);
  wake(&ring->state->consumer_waits, ring->filled);
}

bool ring_await_space(struct ring *ring) {
  atomic_store(&ring->state->producer_waits, 1);
  /* Looked at after the wish is known: a consumer that made room in between either sees it or is seen. */
  if (held_after_producer(ring) == RING_SIZE) return true;
  atomic_store(&ring->state->producer_waits, 0);
  return false;
}

const uint8_t *ring_filled(const struct ring *ring, size_t *length) {
  uint32_t at = ring->own_count % RING_SIZE;
  uint32_t bytes = held_for_consumer(ring);
  *length = minimum(bytes, RING_SIZE - at);
  return ring->data + at;
}

void ring_consume(struct ring *ring, size_t length) {
  ring->own_count += (uint32_t)length;
  atomic_store(&ring->state->read, ring->own_count);
  if (held_for_consumer(ring) <= RING_SIZE / 2) wake(&ring->state->producer_waits, ring->drained);
}

bool ring_has_ended(const struct ring *ring) { return atomic_load(&ring->state->ended) != 0; }

bool ring_await_data(struct ring *ring) {
  atomic_store(&ring->state->consumer_waits, 1);
  if (held_for_consumer(ring) == 0 && !ring_has_ended(ring)) return true;
  atomic_store(&ring->state->consumer_waits, 0);
  return false;
}

void ring_sleep(int event) {
  struct pollfd wait = {.fd = event, .events = POLLIN};
  uint64_t count;
  poll(&wait, 1, -1);
  ssize_t ignored = read(event, &count, sizeof count);
  (void)ignored;
}

typedef uint8_t word16 __attribute__((vector_size(16), aligned(1), may_alias));

void bulk_copy(uint8_t *to, const uint8_t *from, size_t length) {
  /* The C library's memcpy is one string instruction, which an emulated CPU executes word by word at half this speed. */
  for (; length >= 64; to += 64, from += 64, length -= 64) {
    const word16 a = *(const word16 *)from, b = *(const word16 *)(from + 16);
    const word16 c = *(const word16 *)(from + 32), d = *(const word16 *)(from + 48);
    *(word16 *)to = a;
    *(word16 *)(to + 16) = b;
    *(word16 *)(to + 32) = c;
    *(word16 *)(to + 48) = d;
    __asm__ volatile("" ::: "memory"); /* or the compiler makes it a memcpy again */
  }
  memcpy(to, from, length);
}
