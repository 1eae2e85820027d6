#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "files.h"
#include "protocol.gen.h"
#include "ring.h"
#include "util.h"

/* Workers at the same time. Transfers wait for their peer most of the time, so a few of them must not take the place of
 * requests that only need the storage. */
#define MAX_SHORT 8
#define MAX_TRANSFERS 24
/* With those that were killed but are stuck in the kernel. */
#define MAX_WORKERS 64
/* Waiting and running. */
#define MAX_JOBS 256

enum job_kind {
  JOB_SHORT,
  JOB_TRANSFER,
  JOB_OWN, /* of the agent itself: never queued */
};

struct job {
  struct agent *agent;
  struct job *next;
  struct job *previous;
  enum job_kind kind;
  struct helper helper;
  struct stream stream;
  uint16_t op;
  uint8_t *body;
  size_t length;
  struct timer deadline;
  struct inflow in;   /* write-file */
  struct outflow out; /* read-file */
  struct ring ring;   /* the body of either */
  bool body_ended;    /* write-file: all of it is in the ring */
  bool started;
  bool killed;
  bool responded;
  bool reaped;
  int exit_status; /* of wait(2) */
  char *temporary; /* to be removed if the worker is killed */
  job_done *done;  /* JOB_OWN */
};

static void schedule(struct agent *agent);

static void job_free(struct job *job) {
  struct jobs *jobs = &job->agent->jobs;
  *(job->previous != NULL ? &job->previous->next : &jobs->first) = job->next;
  *(job->next != NULL ? &job->next->previous : &jobs->last) = job->previous;
  jobs->count--;
  free(job->body);
  free(job->temporary);
  free(job);
}

/* Nothing is told to the host any more; the job goes when its worker is gone. */
static void end(struct job *job) {
  streams_remove(&job->agent->streams, &job->stream);
  loop_disarm(&job->agent->loop, &job->deadline);
  if (job->op == OP_WRITE_FILE) inflow_stop(&job->in);
  if (job->op == OP_READ_FILE) outflow_stop(&job->out);
  ring_close(&job->ring);
  if (!job->started || job->reaped) job_free(job);
}

static void cancel(struct job *job) {
  if (job->started) helper_kill(&job->helper);
  job->killed = true;
  end(job);
}

static void respond_error(struct job *job, uint32_t status, int error, const char *message) {
  if (job->responded) return;
  job->responded = true;
  if (job->kind == JOB_OWN) {
    if (job->done != NULL) job->done(job->agent, status, error, message);
  } else {
    channel_respond_error(&job->agent->channel, job->stream.id, status, error, message);
  }
}

static void deadline_due(struct timer *timer) {
  struct job *job = container_of(timer, struct job, deadline);
  if (job->responded) {
    channel_send_u32(&job->agent->channel, job->stream.id, FRAME_RESET, STATUS_DEADLINE);
  } else {
    respond_error(job, STATUS_DEADLINE, 0, "the deadline of the request passed");
  }
  struct agent *agent = job->agent;
  cancel(job);
  schedule(agent);
}

/* --- the stream ------------------------------------------------------------------------------------------------- */

static bool stream_data(struct stream *stream, const uint8_t *data, size_t length) {
  struct job *job = container_of(stream, struct job, stream);
  return job->op == OP_WRITE_FILE && inflow_push(&job->in, data, length);
}

static void stream_eof(struct stream *stream) {
  struct job *job = container_of(stream, struct job, stream);
  if (job->op == OP_WRITE_FILE) inflow_end(&job->in);
}

static void stream_credit(struct stream *stream, uint32_t bytes) {
  struct job *job = container_of(stream, struct job, stream);
  if (job->op == OP_READ_FILE) outflow_grant(&job->out, bytes);
}

static void stream_reset(struct stream *stream) {
  struct job *job = container_of(stream, struct job, stream);
  struct agent *agent = job->agent;
  cancel(job);
  schedule(agent);
}

static void stream_upheaval(struct stream *stream, int what) {
  struct job *job = container_of(stream, struct job, stream);
  if (what != UPHEAVAL_ZERO_CREDIT) {
    stream_reset(stream);
  } else if (job->op == OP_READ_FILE) {
    outflow_zero_credit(&job->out);
  }
}

static const struct stream_ops stream_ops = {
    .data = stream_data,
    .eof = stream_eof,
    .credit = stream_credit,
    .reset = stream_reset,
    .upheaval = stream_upheaval,
};

/* --- the body --------------------------------------------------------------------------------------------------- */

/* The second look finds what came between the first and the wish to be woken; a worker that shows and hides it in turns gets
 * no third. */
#define LOOKS 2

static ssize_t body_take(struct inflow *flow, const uint8_t *data, size_t length) {
  struct ring *ring = &container_of(flow, struct job, in)->ring;
  for (int look = 0; look < LOOKS; look++) {
    size_t room;
    uint8_t *at = ring_free(ring, &room);
    room = minimum(room, length);
    if (room > 0) {
      bulk_copy(at, data, room);
      ring_publish(ring, room, RING_WHEN_WORTHWHILE);
      return (ssize_t)room;
    }
    if (ring_await_space(ring)) break;
  }
  errno = EAGAIN;
  return -1;
}

static void body_complete(struct inflow *flow) {
  struct job *job = container_of(flow, struct job, in);
  job->body_ended = true;
  ring_end(&job->ring);
  inflow_stop(flow);
}

/* Cannot happen with a ring; the response of the worker says what is wrong. */
static void body_refused(struct inflow *flow, int error) {
  (void)error;
  inflow_stop(flow);
}

static ssize_t body_give(struct outflow *flow, uint8_t *into, size_t room) {
  struct job *job = container_of(flow, struct job, out);
  struct ring *ring = &job->ring;
  for (int look = 0; look < LOOKS; look++) {
    /* A worker that is gone adds nothing, whether it came to the end or not; its exit status tells. */
    bool over = ring_has_ended(ring) || job->reaped;
    size_t length;
    const uint8_t *at = ring_filled(ring, &length);
    length = minimum(length, room);
    if (length > 0) {
      bulk_copy(into, at, length);
      ring_consume(ring, length);
      return (ssize_t)length;
    }
    if (over) return 0;
    if (ring_await_data(ring)) break;
  }
  errno = EAGAIN;
  return -1;
}

/* The body of a read-file is complete only if its worker says so by its exit status. */
static void finish_read(struct job *job) {
  if (!job->reaped || !job->out.source_done) return;
  if (WIFEXITED(job->exit_status) && WEXITSTATUS(job->exit_status) == STATUS_OK) {
    outflow_finish(&job->out);
    return;
  }
  uint32_t status = WIFEXITED(job->exit_status) ? (uint32_t)WEXITSTATUS(job->exit_status) : STATUS_IO;
  channel_send_u32(&job->agent->channel, job->stream.id, FRAME_RESET, status);
  end(job);
}

static void body_read(struct outflow *flow, int error) {
  (void)error;
  finish_read(container_of(flow, struct job, out));
}

static void body_sent(struct outflow *flow) { end(container_of(flow, struct job, out)); }

/* --- the worker ------------------------------------------------------------------------------------------------- */

static void worker_result(struct job *job, const uint8_t *payload, size_t length) {
  if (job->responded || length < 4) return;
  uint32_t status = load_u32(payload);
  if (job->kind == JOB_OWN) {
    struct reader reader = reader_of(payload + 4, length - 4);
    int error = status != STATUS_OK ? (int)take_u32(&reader) : 0;
    char *message = take_string(&reader);
    respond_error(job, status, error, message);
    free(message);
    return;
  }
  if (job->stream.ops == NULL) return;
  if (job->op == OP_WRITE_FILE && status == STATUS_OK && !job->body_ended) {
    respond_error(job, STATUS_IO, 0, "the file worker did not wait for the end of the body");
    end(job);
    return;
  }
  job->responded = true;
  channel_respond_raw(&job->agent->channel, job->stream.id, payload, length);
  if (job->op == OP_READ_FILE && status == STATUS_OK) {
    int filled = job->ring.filled;
    job->ring.filled = -1; /* the flow's from here on */
    outflow_start(&job->out, filled);
  } else {
    end(job);
  }
}

static void worker_message(struct helper *helper, uint8_t kind, const uint8_t *payload, size_t length) {
  struct job *job = container_of(helper, struct job, helper);
  if (kind == FILES_RESULT) {
    worker_result(job, payload, length);
  } else if (kind == FILES_TEMPORARY && job->temporary == NULL) {
    job->temporary = must_alloc(length + 1);
    memcpy(job->temporary, payload, length);
  }
}

static void remove_temporary(struct job *job) {
  struct buffer body = {0};
  put_string(&body, job->temporary);
  job_run(job->agent, OP_INTERNAL_REMOVE, buffer_head(&body), buffer_length(&body), 0, NULL);
  buffer_free(&body);
}

static void worker_reaped(struct helper *helper, int status) {
  struct job *job = container_of(helper, struct job, helper);
  struct agent *agent = job->agent;
  job->reaped = true;
  job->exit_status = status;
  if (WIFSIGNALED(status) && job->temporary != NULL) remove_temporary(job);
  if (job->stream.ops == NULL && job->kind != JOB_OWN) {
    job_free(job);
  } else if (job->op == OP_READ_FILE && job->responded) {
    if (!job->out.source_done) outflow_poke(&job->out);
    finish_read(job);
  } else {
    respond_error(job, STATUS_IO, 0, "the file worker ended early");
    end(job);
  }
  schedule(agent);
}

static const struct helper_ops worker_ops = {.message = worker_message, .reaped = worker_reaped};

static bool start(struct job *job) {
  bool has_body = job->op == OP_WRITE_FILE || job->op == OP_READ_FILE;
  if (has_body && !ring_open(&job->ring)) return false;
  struct files_task task = {.op = job->op, .body = job->body, .length = job->length, .ring = job->ring};
  const int keep[] = {job->ring.filled, job->ring.drained};
  struct helper_plan plan = {.run = files_run, .context = &task, .keep = keep, .keep_count = has_body ? 2 : 0};
  if (!helper_start(&job->helper, job->agent, &worker_ops, &plan)) return false;
  if (has_body) ring_keep_from_forks(&job->ring);
  job->started = true;
  free(job->body);
  job->body = NULL;
  if (job->op == OP_WRITE_FILE) {
    int drained = job->ring.drained;
    job->ring.drained = -1; /* the flow's from here on */
    inflow_start(&job->in, drained);
  }
  return true;
}

static void start_or_refuse(struct job *job) {
  if (start(job)) return;
  respond_error(job, status_of_errno(errno), errno, "cannot start a file worker");
  end(job);
}

/* Starts waiting jobs, oldest first, as far as there are workers for their kind. */
static void schedule(struct agent *agent) {
  size_t running[3] = {0};
  size_t workers = 0;
  for (struct job *job = agent->jobs.first; job != NULL; job = job->next) {
    if (!job->started || job->reaped) continue;
    workers++;
    if (!job->killed) running[job->kind]++;
  }
  struct job *next;
  for (struct job *job = agent->jobs.first; job != NULL && workers < MAX_WORKERS; job = next) {
    next = job->next;
    size_t most = job->kind == JOB_TRANSFER ? MAX_TRANSFERS : MAX_SHORT;
    if (job->started || running[job->kind] >= most) continue;
    running[job->kind]++;
    workers++;
    start_or_refuse(job);
  }
}

static struct job *add(struct agent *agent, uint16_t op, const uint8_t *body, size_t length) {
  struct job *job = must_alloc(sizeof *job);
  job->agent = agent;
  job->op = op;
  job->body = must_alloc(length);
  if (length > 0) memcpy(job->body, body, length);
  job->length = length;
  job->deadline.fire = deadline_due;
  job->previous = agent->jobs.last;
  *(job->previous != NULL ? &job->previous->next : &agent->jobs.first) = job;
  agent->jobs.last = job;
  agent->jobs.count++;
  return job;
}

static void arm(struct job *job, uint32_t deadline_ms) {
  if (deadline_ms > 0) loop_arm(&job->agent->loop, &job->deadline, monotonic_ns() + deadline_ms * NS_PER_MS);
}

void job_request(struct agent *agent, const struct request *request) {
  if (agent->jobs.count >= MAX_JOBS) {
    channel_respond_error(&agent->channel, request->stream, STATUS_LIMIT, 0, "too many file requests");
    return;
  }
  struct job *job = add(agent, request->op, request->body, request->length);
  bool transfer = request->op == OP_WRITE_FILE || request->op == OP_READ_FILE;
  job->kind = transfer ? JOB_TRANSFER : JOB_SHORT;
  streams_add(&agent->streams, &job->stream, request->stream, &stream_ops);
  inflow_init(&job->in, agent, request->stream);
  job->in.take = body_take;
  job->in.drained = body_complete;
  job->in.failed = body_refused;
  outflow_init(&job->out, agent, request->stream);
  job->out.produce = body_give;
  job->out.done = body_read;
  job->out.finished = body_sent;
  arm(job, request->deadline_ms);
  schedule(agent);
}

void job_run(struct agent *agent, uint16_t op, const uint8_t *body, size_t length, uint32_t deadline_ms, job_done *done) {
  struct job *job = add(agent, op, body, length);
  job->kind = JOB_OWN;
  job->done = done;
  arm(job, deadline_ms);
  start_or_refuse(job);
}
