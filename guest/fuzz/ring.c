/*
 * Puts the ring between agent and file worker to the test with a process on each side. Deterministic but for their timing:
 * ring ROUNDS SEED. To be built with sanitizers; any report or broken rule ends it with a failure, and so does a side that
 * waits for ever.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"

/* Of one transfer, and of one piece, bytes: some pieces are larger than the ring. */
#define MAX_BODY (4u * 1024 * 1024)
#define MAX_PIECE (RING_SIZE + RING_SIZE / 2)
/* Pieces an honest side moves against a hostile one. */
#define HOSTILE_PIECES 2000
/* Longest any round may take, seconds. */
#define PATIENCE 30

static uint64_t random_state;

static uint64_t random_number(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static uint32_t random_below(uint32_t limit) { return (uint32_t)(random_number() % limit); }

static void check(bool holds, const char *rule) {
  if (holds) return;
  fprintf(stderr, "ring: broken rule: %s\n", rule);
  abort();
}

static void check_piece(const struct ring *ring, const uint8_t *at, size_t length) {
  check(at >= ring->data && length <= RING_SIZE && at + length <= ring->data + RING_SIZE, "a piece lies within the ring");
}

static uint8_t byte_at(uint64_t position) { return (uint8_t)(position * 31 + (position >> 8) * 7 + (position >> 16)); }

/* Mostly small pieces, so that both sides find the ring full, empty and in between. */
static size_t some_piece(void) { return 1 + random_below(random_below(4) == 0 ? MAX_PIECE : 5000); }

/* --- both sides honest ------------------------------------------------------------------------------------------------ */

static void produce(struct ring *ring, uint64_t total) {
  for (uint64_t done = 0; done < total;) {
    size_t room;
    uint8_t *at = ring_free(ring, &room);
    check_piece(ring, at, room);
    if (room == 0) {
      if (ring_await_space(ring)) ring_sleep(ring->drained);
      continue;
    }
    size_t piece = some_piece();
    room = minimum(room, piece);
    room = minimum(room, total - done);
    for (size_t i = 0; i < room; i++) at[i] = byte_at(done + i);
    ring_publish(ring, room, random_below(2) == 0 ? RING_AT_ONCE : RING_WHEN_WORTHWHILE);
    done += room;
  }
  ring_end(ring);
}

static uint64_t consume(struct ring *ring) {
  uint64_t done = 0;
  for (;;) {
    bool over = ring_has_ended(ring);
    size_t length;
    const uint8_t *at = ring_filled(ring, &length);
    check_piece(ring, at, length);
    if (length == 0) {
      if (over) return done;
      if (ring_await_data(ring)) ring_sleep(ring->filled);
      continue;
    }
    size_t piece = some_piece();
    length = minimum(length, piece);
    for (size_t i = 0; i < length; i++) check(at[i] == byte_at(done + i), "every byte arrives once, in order");
    ring_consume(ring, length);
    done += length;
  }
}

static pid_t other_side(void) {
  uint64_t seed = random_number();
  pid_t pid = fork();
  check(pid >= 0, "there is another process");
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  random_state = seed;
  alarm(PATIENCE);
  return 0;
}

static void check_end_of(pid_t pid) {
  int status;
  check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other side ends well");
}

static void transfer(void) {
  struct ring ring;
  check(ring_open(&ring), "a ring can be made");
  uint64_t total = random_below(8) == 0 ? random_below(10) : random_below(MAX_BODY);
  pid_t pid = other_side();
  if (pid == 0) {
    produce(&ring, total);
    _exit(0);
  }
  ring_keep_from_forks(&ring);
  check(consume(&ring) == total, "nothing is lost");
  check_end_of(pid);
  ring_close(&ring);
}

/* --- one side hostile ------------------------------------------------------------------------------------------------- */

/* Writes whatever into the shared counts and flags, as fast as it can. */
__attribute__((noreturn)) static void disturb(const struct ring *ring) {
  volatile uint32_t *words = (volatile uint32_t *)ring->state;
  const uint32_t edges[] = {0, 1, RING_SIZE - 1, RING_SIZE, RING_SIZE + 1, UINT32_MAX, UINT32_MAX - RING_SIZE};
  for (;;) {
    uint32_t word = random_below(6);
    uint32_t value = (uint32_t)random_number();
    switch (random_below(3)) {
      case 0: words[word] = value; break;
      case 1: words[word] = edges[random_below(array_length(edges))]; break;
      default: words[word] += edges[random_below(array_length(edges))]; break;
    }
  }
}

static void move_against(struct ring *ring) {
  for (int piece = 0; piece < HOSTILE_PIECES; piece++) {
    size_t length;
    uint8_t *room = ring_free(ring, &length);
    check_piece(ring, room, length);
    length = minimum(length, 5000);
    memset(room, 0x55, length);
    ring_publish(ring, length, RING_WHEN_WORTHWHILE);
    ring_await_space(ring);
  }
  for (int piece = 0; piece < HOSTILE_PIECES; piece++) {
    static uint8_t copy[5000];
    size_t length;
    const uint8_t *at = ring_filled(ring, &length);
    check_piece(ring, at, length);
    length = minimum(length, sizeof copy);
    bulk_copy(copy, at, length);
    ring_consume(ring, length);
    ring_has_ended(ring);
    ring_await_data(ring);
  }
}

static void withstand(void) {
  struct ring ring;
  check(ring_open(&ring), "a ring can be made");
  pid_t pid = other_side();
  if (pid == 0) disturb(&ring);
  move_against(&ring);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  ring_close(&ring);
}

int main(int count, char **arguments) {
  unsigned long rounds = count > 1 ? strtoul(arguments[1], NULL, 10) : 100;
  uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
  random_state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (unsigned long round = 0; round < rounds; round++) {
    alarm(PATIENCE);
    transfer();
    withstand();
  }
  printf("ring: %lu rounds, seed %llu: ok\n", rounds, (unsigned long long)seed);
  return 0;
}
