#include "generation.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "files.h"
#include "job.h"
#include "protocol.gen.h"
#include "util.h"

/* A quiesce that cannot freeze within this gives up when the request has no deadline of its own. */
#define FREEZE_DEADLINE_MS 5000u
/* The same for a settle, which has to write what the guest holds of its disk in memory. */
#define SETTLE_DEADLINE_MS 60000u
/* The files of an activate; user processes wait for them. */
#define FILES_DEADLINE_MS 5000u
#define MAX_LEASE_MS 60000u

static struct agent *agent_of(struct generation *generation) { return container_of(generation, struct agent, generation); }

void generation_thaw(struct agent *agent) {
  struct generation *generation = &agent->generation;
  loop_disarm(&agent->loop, &generation->freeze_deadline);
  loop_disarm(&agent->loop, &generation->lease);
  streams_remove(&agent->streams, &generation->quiesce);
  if (generation->state == GENERATION_RUNNING) return;
  generation->state = GENERATION_RUNNING;
  freezer_thaw(agent);
  channel_release(&agent->channel);
}

void generation_open(struct generation *generation) { memory_devices_find(&generation->memory); }

/* --- quiesce ---------------------------------------------------------------------------------------------------- */

static void lease_over(struct timer *timer) {
  generation_thaw(agent_of(container_of(timer, struct generation, lease)));
}

static void arm_lease(struct agent *agent) {
  struct generation *generation = &agent->generation;
  generation->lease.fire = lease_over;
  loop_arm(&agent->loop, &generation->lease, monotonic_ns() + minimum(generation->lease_ms, MAX_LEASE_MS) * NS_PER_MS);
}

void generation_resync(struct agent *agent) {
  if (agent->generation.state == GENERATION_QUIESCED) {
    arm_lease(agent);
  } else {
    generation_thaw(agent);
  }
}

static void freeze_failed(struct timer *timer) {
  struct agent *agent = agent_of(container_of(timer, struct generation, freeze_deadline));
  uint32_t stream = agent->generation.quiesce.id;
  generation_thaw(agent);
  channel_respond_error(&agent->channel, stream, STATUS_DEADLINE, 0, "the guest did not come to rest in time");
}

/* The last answer until activate, resync or the end of the lease. */
static void hold(struct agent *agent) {
  struct generation *generation = &agent->generation;
  uint32_t stream = generation->quiesce.id;
  uint64_t now = monotonic_ns();
  loop_disarm(&agent->loop, &generation->freeze_deadline);
  streams_remove(&agent->streams, &generation->quiesce);
  generation->state = GENERATION_QUIESCED;
  struct buffer *body = channel_respond(&agent->channel, stream);
  put_u32(body, freezer_count(&agent->freezer));
  put_u64(body, (now - generation->freeze_started_ns) / 1000);
  channel_end(&agent->channel);
  channel_hold(&agent->channel);
  arm_lease(agent);
}

static void synced(struct agent *agent, uint32_t status, int error, const char *message) {
  struct generation *generation = &agent->generation;
  /* Of a settle that was given up, or not the last of those under way. */
  if (--generation->syncs > 0 || generation->state != GENERATION_FREEZING || !generation->settles) return;
  if (status == STATUS_OK) {
    hold(agent);
    return;
  }
  uint32_t stream = generation->quiesce.id;
  generation_thaw(agent);
  channel_respond_error(&agent->channel, stream, status, error, message);
}

static void frozen(struct agent *agent) {
  struct generation *generation = &agent->generation;
  if (!generation->settles) {
    hold(agent);
    return;
  }
  generation->syncs++;
  job_run(agent, OP_INTERNAL_SYNC, NULL, 0, generation->freeze_deadline_ms, synced);
}

static void quiesce_reset(struct stream *stream) {
  generation_thaw(agent_of(container_of(stream, struct generation, quiesce)));
}

static const struct stream_ops quiesce_ops = {.reset = quiesce_reset};

static void begin_quiesce(struct agent *agent, const struct request *request, bool settles, uint32_t longest_ms) {
  struct generation *generation = &agent->generation;
  struct reader reader = reader_of(request->body, request->length);
  if (generation->state != GENERATION_RUNNING) {
    channel_respond_error(&agent->channel, request->stream, STATUS_EXISTS, 0, "already quiesced");
    return;
  }
  uint32_t deadline_ms = request->deadline_ms > 0 ? request->deadline_ms : longest_ms;
  generation->state = GENERATION_FREEZING;
  generation->settles = settles;
  generation->freeze_deadline_ms = deadline_ms;
  generation->lease_ms = take_u32(&reader);
  generation->freeze_started_ns = monotonic_ns();
  generation->freeze_deadline.fire = freeze_failed;
  streams_add(&agent->streams, &generation->quiesce, request->stream, &quiesce_ops);
  loop_arm(&agent->loop, &generation->freeze_deadline, generation->freeze_started_ns + deadline_ms * NS_PER_MS);
  if (freezer_freeze(agent, frozen)) return;
  int error = errno;
  generation_thaw(agent);
  channel_respond_error(&agent->channel, request->stream, status_of_errno(error), error, "cannot freeze the processes");
}

void generation_quiesce(struct agent *agent, const struct request *request) {
  begin_quiesce(agent, request, false, FREEZE_DEADLINE_MS);
}

void generation_settle(struct agent *agent, const struct request *request) {
  begin_quiesce(agent, request, true, SETTLE_DEADLINE_MS);
}

/* --- activate --------------------------------------------------------------------------------------------------- */

/* The files are written (or cannot be): user processes may go on, whatever the answer is. */
static void files_written(struct agent *agent, uint32_t status, int error, const char *message) {
  struct generation *generation = &agent->generation;
  if (--generation->writers > 0) return;
  uint32_t stream = generation->activation.id;
  bool waiting = generation->activation.ops != NULL;
  streams_remove(&agent->streams, &generation->activation);
  generation_thaw(agent);
  if (!waiting) return;
  if (status != STATUS_OK) {
    channel_respond_error(&agent->channel, stream, status, error, message);
    return;
  }
  put_u64(channel_respond(&agent->channel, stream), wall_ns());
  channel_end(&agent->channel);
}

static void activation_upheaval(struct stream *stream, int what) {
  /* A new connection asks anew; the files are still finished. The activation itself causes the other kinds. */
  if (what != UPHEAVAL_RESYNC) return;
  streams_remove(&agent_of(container_of(stream, struct generation, activation))->streams, stream);
}

static const struct stream_ops activation_ops = {.upheaval = activation_upheaval};

static void set_hostname(const struct span *hostname) {
  if (hostname->length > 0 && sethostname((const char *)hostname->data, hostname->length) != 0) {
    warn("cannot set the host name: %s", strerror(errno));
  }
}

void generation_activate(struct agent *agent, const struct request *request) {
  struct generation *generation = &agent->generation;
  struct reader reader = reader_of(request->body, request->length);
  const uint8_t *key = take_bytes(&reader, KEY_SIZE);
  take_span(&reader); /* generation: opaque, the key is what counts */
  bool reset_streams = take_u8(&reader) != 0;
  uint64_t wall = take_u64(&reader);
  struct span entropy = take_span(&reader);
  struct span hostname = take_span(&reader);
  if (generation->activation.ops != NULL) {
    channel_respond_error(&agent->channel, request->stream, STATUS_EXISTS, 0, "another activate is under way");
    return;
  }
  /* Before any user instruction runs: random numbers and the clock, then names and files, then the thaw. */
  int error = system_reseed(entropy.data, entropy.length) == 0 ? 0 : errno;
  if (error == 0 && wall != 0 && agent->owns_system && system_step_clock(wall) != 0) error = errno;
  if (error != 0) {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(error), error, "entropy and clock");
    return;
  }
  decoder_set_key(&agent->channel.decoder, key);
  if (agent->owns_system) set_hostname(&hostname);
  agent->channel.credit = 0;
  streams_add(&agent->streams, &generation->activation, request->stream, &activation_ops);
  agent_upheaval(agent, reset_streams ? UPHEAVAL_NEW_GENERATION : UPHEAVAL_ZERO_CREDIT);
  /* Its own deadline, as the lease may end meanwhile: then the thaw comes with the answer all the same. */
  uint32_t deadline_ms = request->deadline_ms > 0 ? request->deadline_ms : FILES_DEADLINE_MS;
  loop_disarm(&agent->loop, &generation->lease);
  generation->writers++;
  struct reader files = reader_of(request->body, request->length);
  if (files_activate_in_memory(&files, &generation->memory)) {
    files_written(agent, STATUS_OK, 0, NULL);
    return;
  }
  job_run(agent, OP_ACTIVATE, request->body, request->length, deadline_ms, files_written);
}
