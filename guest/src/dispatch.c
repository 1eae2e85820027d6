#include "dispatch.h"

#include <errno.h>

#include "agent.h"
#include "bench.h"
#include "body.h"
#include "protocol.gen.h"
#include "util.h"

/* The host's ids: from 16 on, in steps of 4; bit 31 marks those of the guest. */
#define FIRST_STREAM 16u
#define STREAM_STEP 4u
#define GUEST_STREAMS 0x80000000u

uint32_t status_of_errno(int error) {
  switch (error) {
    case 0: return STATUS_OK;
    case ENOENT:
    case ESRCH: return STATUS_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY:
    case EADDRINUSE: return STATUS_EXISTS;
    case ENOTDIR: return STATUS_NOT_DIRECTORY;
    case EISDIR: return STATUS_IS_DIRECTORY;
    case ENXIO: return STATUS_NOT_REGULAR;
    case ENOSPC:
    case EDQUOT: return STATUS_NO_SPACE;
    case EACCES:
    case EPERM:
    case EROFS: return STATUS_PERMISSION;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP: return STATUS_INVALID;
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case ENOMEM: return STATUS_LIMIT;
    case ECONNREFUSED: return STATUS_REFUSED;
    default: return STATUS_IO;
  }
}

static void ping(struct agent *agent, const struct request *request) {
  put_u64(channel_respond(&agent->channel, request->stream), monotonic_ns());
  channel_end(&agent->channel);
}

static void run(struct agent *agent, const struct request *request) {
  switch (request->op) {
    case OP_PING: ping(agent, request); break;
    case OP_ACTIVATE: generation_activate(agent, request); break;
    case OP_QUIESCE: generation_quiesce(agent, request); break;
    case OP_SETTLE: generation_settle(agent, request); break;
    case OP_SET_CLOCK: system_set_clock(agent, request); break;
    case OP_ADD_ENTROPY: system_add_entropy(agent, request); break;
    case OP_METRICS: system_metrics(agent, request); break;
    case OP_SPAWN: process_spawn(agent, request); break;
    case OP_SIGNAL: process_signal(agent, request); break;
    case OP_RESIZE: process_resize(agent, request); break;
    case OP_LIST_PROCESSES: process_list(agent, request); break;
    case OP_WATCH: watch_request(agent, request); break;
    case OP_CONNECT_PORT: port_connect(agent, request); break;
    case OP_LISTEN_PORT: port_listen(agent, request); break;
    case OP_SOURCE: bench_source(agent, request); break;
    case OP_SINK: bench_sink(agent, request); break;
    default: job_request(agent, request);
  }
}

static bool dispatch_request(struct agent *agent, const struct frame *frame) {
  if (frame->stream < FIRST_STREAM || frame->stream % STREAM_STEP != 0 || frame->stream >= GUEST_STREAMS) return false;
  for (uint32_t i = 0; i < STREAM_STEP; i++) {
    if (streams_find(&agent->streams, frame->stream + i) != NULL) return false;
  }
  struct reader reader = reader_of(frame->payload, frame->length);
  struct request request = {.stream = frame->stream};
  request.op = take_u16(&reader);
  request.deadline_ms = take_u32(&reader);
  request.body = reader.at;
  request.length = (size_t)(reader.end - reader.at);
  const char *format = request_format(request.op);
  if (format == NULL) {
    channel_respond_error(&agent->channel, request.stream, STATUS_UNSUPPORTED, 0, "unknown operation");
  } else if (!body_matches(format, request.body, request.length)) {
    channel_respond_error(&agent->channel, request.stream, STATUS_PROTOCOL, 0, "the body does not match its layout");
  } else {
    run(agent, &request);
  }
  return true;
}

bool dispatch_frame(struct agent *agent, const struct frame *frame) {
  if (frame->type == FRAME_REQUEST) return dispatch_request(agent, frame);
  if (frame->type == FRAME_CREDIT && frame->stream == 0) {
    agent->channel.credit += load_u32(frame->payload);
    return true;
  }
  struct stream *stream = streams_find(&agent->streams, frame->stream);
  if (stream == NULL) return true; /* it was in flight when the stream ended */
  const struct stream_ops *ops = stream->ops;
  switch (frame->type) {
    case FRAME_DATA: return ops->data == NULL || ops->data(stream, frame->payload, frame->length);
    case FRAME_EOF:
      if (ops->eof != NULL) ops->eof(stream);
      return true;
    case FRAME_CREDIT:
      if (ops->credit != NULL) ops->credit(stream, load_u32(frame->payload));
      return true;
    case FRAME_RESET:
      if (ops->reset != NULL) ops->reset(stream);
      return true;
    default: return false;
  }
}
