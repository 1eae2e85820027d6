/* Watches of directories. Each is a child process that waits for inotify and walks directories; the agent passes on what it
 * reports. */
#ifndef AENV_WATCH_H
#define AENV_WATCH_H

#include <stddef.h>

struct agent;
struct request;
struct watch;

struct watches {
  struct watch *first;
  size_t count;
};

void watch_request(struct agent *agent, const struct request *request);
/* Lets watchers go on that wait because the channel was congested. */
void watches_resume(struct agent *agent);

#endif
