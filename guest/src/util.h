/* Small things every module needs. */
#ifndef AENV_UTIL_H
#define AENV_UTIL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))
#define array_length(array) (sizeof(array) / sizeof((array)[0]))
/* Evaluates its arguments twice. */
#define minimum(a, b) ((a) < (b) ? (a) : (b))

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

/* CLOCK_MONOTONIC and CLOCK_REALTIME in nanoseconds. */
uint64_t monotonic_ns(void);
uint64_t wall_ns(void);

/* Memory for the agent's own bounded structures. Every size is limited by the caller, so a failure means that the guest
 * is beyond help: the agent stops, which ends a VM by a kernel panic instead of leaving it half alive. */
void *must_alloc(size_t size);
void *must_realloc(void *memory, size_t size);

/* Says why on stderr and the kernel log, and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
__attribute__((format(printf, 1, 2))) void warn(const char *format, ...);

void set_nonblocking(int fd);
/* Closes *fd unless it is -1, and makes it -1. */
void close_fd(int *fd);
/* Writes everything, waiting where needed. -1 with errno on failure. */
int write_all(int fd, const void *data, size_t length);
/* Reads a small file completely into a NUL-terminated buffer; the length, or -1 with errno. */
ssize_t read_small_file(const char *path, char *into, size_t size);
/* Writes a control file of /proc or /sys; -1 with errno. */
int write_control_file(const char *path, const char *text);
/* Bytes a pipe, socket or terminal holds for its reader. */
size_t bytes_waiting(int fd);

#endif
