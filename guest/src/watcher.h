/* The child side of a watch: arms inotify, follows new directories, and reports what happens. */
#ifndef AENV_WATCHER_H
#define AENV_WATCHER_H

#include <stddef.h>
#include <stdint.h>

/* Messages to the agent. */
#define WATCHER_RESULT 'R' /* the payload of the RESPONSE; the watch is armed */
#define WATCHER_EVENT 'E'  /* the body of an EVENT without its kind */

struct watcher_task {
  const uint8_t *body; /* of the REQUEST, its layout was checked */
  size_t length;
};

/* The `run` of a helper; `context` is a struct watcher_task. */
void watcher_run(void *context);

#endif
