#include "watch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "protocol.gen.h"
#include "util.h"
#include "watcher.h"

#define MAX_WATCHES 64u

struct watch {
  struct agent *agent;
  struct watch *next;
  struct helper helper;
  struct stream stream;
  struct timer deadline; /* until it is armed */
  bool answered;
  bool paused;
};

/* Nothing is told any more; the memory goes when the watcher is reaped. */
static void end(struct watch *watch) {
  streams_remove(&watch->agent->streams, &watch->stream);
  loop_disarm(&watch->agent->loop, &watch->deadline);
  helper_kill(&watch->helper);
}

static void stream_reset(struct stream *stream) { end(container_of(stream, struct watch, stream)); }

static void stream_upheaval(struct stream *stream, int what) {
  if (what != UPHEAVAL_ZERO_CREDIT) stream_reset(stream);
}

static const struct stream_ops stream_ops = {.reset = stream_reset, .upheaval = stream_upheaval};

static void deadline_due(struct timer *timer) {
  struct watch *watch = container_of(timer, struct watch, deadline);
  channel_respond_error(&watch->agent->channel, watch->stream.id, STATUS_DEADLINE, 0, "the watch was not armed in time");
  end(watch);
}

/* While the channel is held its events would fill the room that the next request needs. */
static bool must_wait(const struct channel *channel) { return channel_congested(channel) || channel->held; }

static void watcher_message(struct helper *helper, uint8_t kind, const uint8_t *payload, size_t length) {
  struct watch *watch = container_of(helper, struct watch, helper);
  struct channel *channel = &watch->agent->channel;
  if (watch->stream.ops == NULL) return;
  if (kind == WATCHER_RESULT && !watch->answered) {
    watch->answered = true;
    loop_disarm(&watch->agent->loop, &watch->deadline);
    channel_respond_raw(channel, watch->stream.id, payload, length);
    if (length < 4 || load_u32(payload) != STATUS_OK) end(watch);
  } else if (kind == WATCHER_EVENT) {
    struct buffer *body = channel_begin(channel, watch->stream.id, FRAME_EVENT);
    put_u16(body, EVENT_WATCH);
    buffer_append(body, payload, length);
    channel_end(channel);
  }
  /* A guest that changes files faster than the host listens waits in the watcher's socket, then in its inotify queue,
   * whose overflow is an event too. */
  if (must_wait(channel) && !watch->paused) {
    watch->paused = true;
    helper_pause(helper, true);
  }
}

static void watcher_reaped(struct helper *helper, int status) {
  (void)status;
  struct watch *watch = container_of(helper, struct watch, helper);
  struct agent *agent = watch->agent;
  if (watch->stream.ops != NULL) {
    if (watch->answered) {
      channel_send_u32(&agent->channel, watch->stream.id, FRAME_RESET, STATUS_IO);
    } else {
      channel_respond_error(&agent->channel, watch->stream.id, STATUS_IO, 0, "the watcher ended early");
    }
    end(watch);
  }
  struct watch **at = &agent->watches.first;
  while (*at != watch) at = &(*at)->next;
  *at = watch->next;
  agent->watches.count--;
  free(watch);
}

static const struct helper_ops watcher_ops = {.message = watcher_message, .reaped = watcher_reaped};

void watch_request(struct agent *agent, const struct request *request) {
  if (agent->watches.count >= MAX_WATCHES) {
    channel_respond_error(&agent->channel, request->stream, STATUS_LIMIT, 0, "too many watches");
    return;
  }
  struct watch *watch = must_alloc(sizeof *watch);
  struct watcher_task task = {.body = request->body, .length = request->length};
  struct helper_plan plan = {.run = watcher_run, .context = &task};
  watch->agent = agent;
  if (!helper_start(&watch->helper, agent, &watcher_ops, &plan)) {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(errno), errno, "cannot start a watcher");
    free(watch);
    return;
  }
  watch->next = agent->watches.first;
  agent->watches.first = watch;
  agent->watches.count++;
  streams_add(&agent->streams, &watch->stream, request->stream, &stream_ops);
  watch->deadline.fire = deadline_due;
  if (request->deadline_ms > 0) {
    loop_arm(&agent->loop, &watch->deadline, monotonic_ns() + request->deadline_ms * NS_PER_MS);
  }
}

void watches_resume(struct agent *agent) {
  if (must_wait(&agent->channel)) return;
  for (struct watch *watch = agent->watches.first; watch != NULL; watch = watch->next) {
    if (!watch->paused) continue;
    watch->paused = false;
    helper_pause(&watch->helper, false);
  }
}
