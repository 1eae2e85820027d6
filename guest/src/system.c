#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "protocol.gen.h"
#include "util.h"

/* random(4); musl has no linux/random.h. */
#define ADD_ENTROPY 0x40085203
#define RESEED_CRNG 0x5207

/* More than a pool needs, bytes. */
#define MAX_ENTROPY 512u

int system_reseed(const uint8_t *bytes, size_t length) {
  struct {
    int bits;
    int size;
    uint8_t bytes[MAX_ENTROPY];
  } pool;
  length = minimum(length, MAX_ENTROPY);
  if (length == 0) return 0;
  pool.bits = (int)length * 8;
  pool.size = (int)length;
  memcpy(pool.bytes, bytes, length);
  int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = ioctl(fd, ADD_ENTROPY, &pool);
  if (result == 0) result = ioctl(fd, RESEED_CRNG, 0);
  int error = errno;
  close(fd);
  errno = error;
  return result;
}

int system_step_clock(uint64_t wall) {
  struct timespec time = {.tv_sec = (time_t)(wall / NS_PER_S), .tv_nsec = (long)(wall % NS_PER_S)};
  return clock_settime(CLOCK_REALTIME, &time);
}

void system_set_clock(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  uint64_t wall = take_u64(&reader);
  uint64_t before = wall_ns();
  if (wall != 0 && agent->owns_system && system_step_clock(wall) != 0) {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(errno), errno, "clock_settime");
    return;
  }
  put_u64(channel_respond(&agent->channel, request->stream), before - wall);
  channel_end(&agent->channel);
}

void system_add_entropy(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  struct span entropy = take_span(&reader);
  if (system_reseed(entropy.data, entropy.length) != 0) {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(errno), errno, "random number generator");
    return;
  }
  channel_respond_ok(&agent->channel, request->stream);
}

/* Hundredths of a percent of all CPUs since the former call. */
static uint32_t cpu_used(struct cpu_sample *former, uint32_t *count) {
  char text[16384];
  *count = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
  if (read_small_file("/proc/stat", text, sizeof text) < 0) return 0;
  /* cpu user nice system idle iowait irq softirq steal */
  struct cpu_sample now = {0};
  char *at = text + strcspn(text, " ");
  for (int field = 0; field < 8; field++) {
    uint64_t ticks = strtoull(at, &at, 10);
    now.total += ticks;
    if (field == 3 || field == 4) now.idle += ticks;
  }
  uint64_t total = now.total - former->total;
  uint64_t idle = minimum(now.idle - former->idle, total);
  *former = now;
  return total > 0 ? (uint32_t)((total - idle) * 10000 / total) : 0;
}

static uint64_t memory_field(const char *text, const char *name) {
  const char *at = strstr(text, name);
  return at != NULL ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

static uint64_t own_resident(void) {
  char text[128];
  if (read_small_file("/proc/self/statm", text, sizeof text) < 0) return 0;
  return strtoull(text + strcspn(text, " "), NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void system_metrics(struct agent *agent, const struct request *request) {
  char memory[4096];
  if (read_small_file("/proc/meminfo", memory, sizeof memory) < 0) memory[0] = '\0';
  uint64_t total = memory_field(memory, "MemTotal:");
  uint64_t available = memory_field(memory, "MemAvailable:");
  uint64_t cache = memory_field(memory, "\nCached:") + memory_field(memory, "SReclaimable:");
  /* Answered from the mounted superblock: statvfs of the root does not wait for storage. */
  struct statvfs disk = {0};
  statvfs("/", &disk);
  uint32_t cpus;
  uint32_t used = cpu_used(&agent->cpu, &cpus);
  struct buffer *body = channel_respond(&agent->channel, request->stream);
  put_u32(body, cpus);
  put_u32(body, used);
  put_u64(body, total);
  put_u64(body, total - minimum(available, total));
  put_u64(body, cache);
  put_u64(body, (uint64_t)disk.f_blocks * disk.f_frsize);
  put_u64(body, (uint64_t)(disk.f_blocks - disk.f_bfree) * disk.f_frsize);
  put_u64(body, own_resident());
  channel_end(&agent->channel);
}
