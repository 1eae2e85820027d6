#include "freeze.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "util.h"

/* Cgroups nested deeper than this are not counted (they are frozen nevertheless). */
#define COUNT_DEPTH 16

static bool is_frozen(int events_fd) {
  char text[256];
  /* Reading also tells the kernel that this change was seen: the descriptor is quiet until the next one. */
  ssize_t length = pread(events_fd, text, sizeof text - 1, 0);
  if (length <= 0) return false;
  text[length] = '\0';
  return strstr(text, "frozen 1") != NULL;
}

static bool set_frozen(const struct freezer *freezer, const char *value) {
  int fd = openat(freezer->user_cgroup, "cgroup.freeze", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool done = write_all(fd, value, strlen(value)) == 0;
  close(fd);
  return done;
}

static void finish(struct agent *agent) {
  loop_close_source(&agent->loop, &agent->freezer.events);
  agent->freezer.frozen(agent);
}

static void events_changed(struct source *source, uint32_t events) {
  (void)events;
  struct freezer *freezer = container_of(source, struct freezer, events);
  struct agent *agent = container_of(freezer, struct agent, freezer);
  if (is_frozen(source->fd)) finish(agent);
}

bool freezer_open(struct freezer *freezer, const char *path) {
  *freezer = (struct freezer){.user_cgroup = -1, .events = {.fd = -1, .ready = events_changed}};
  if (path == NULL) return true;
  if (mkdir(path, 0755) != 0 && errno != EEXIST) return false;
  freezer->user_cgroup = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return freezer->user_cgroup >= 0;
}

void freezer_close(struct agent *agent) {
  loop_close_source(&agent->loop, &agent->freezer.events);
  close_fd(&agent->freezer.user_cgroup);
}

bool freezer_freeze(struct agent *agent, void (*frozen)(struct agent *agent)) {
  struct freezer *freezer = &agent->freezer;
  freezer->frozen = frozen;
  if (freezer->user_cgroup < 0) {
    frozen(agent);
    return true;
  }
  freezer->events.fd = openat(freezer->user_cgroup, "cgroup.events", O_RDONLY | O_CLOEXEC);
  if (freezer->events.fd < 0 || !set_frozen(freezer, "1")) {
    int error = errno;
    loop_close_source(&agent->loop, &freezer->events);
    errno = error;
    return false;
  }
  if (is_frozen(freezer->events.fd)) {
    finish(agent);
  } else {
    loop_watch(&agent->loop, &freezer->events, EPOLLPRI);
  }
  return true;
}

void freezer_thaw(struct agent *agent) {
  loop_close_source(&agent->loop, &agent->freezer.events);
  if (agent->freezer.user_cgroup >= 0 && !set_frozen(&agent->freezer, "0")) warn("cannot thaw: %s", strerror(errno));
}

static uint32_t count_lines(int directory) {
  int fd = openat(directory, "cgroup.procs", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  uint32_t lines = 0;
  ssize_t length;
  while ((length = read(fd, text, sizeof text)) > 0) {
    for (ssize_t i = 0; i < length; i++) lines += text[i] == '\n';
  }
  close(fd);
  return lines;
}

static uint32_t count_below(int directory, int depth) {
  uint32_t count = count_lines(directory);
  int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *entries = copy >= 0 ? fdopendir(copy) : NULL;
  if (entries == NULL) {
    close_fd(&copy);
    return count;
  }
  struct dirent *entry;
  while (depth > 0 && (entry = readdir(entries)) != NULL) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
    int child = openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (child < 0) continue;
    count += count_below(child, depth - 1);
    close(child);
  }
  closedir(entries);
  return count;
}

uint32_t freezer_count(const struct freezer *freezer) {
  return freezer->user_cgroup >= 0 ? count_below(freezer->user_cgroup, COUNT_DEPTH) : 0;
}
