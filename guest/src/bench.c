#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "protocol.gen.h"
#include "util.h"

struct faucet {
  struct agent *agent;
  struct stream stream;
  struct outflow flow;
  uint64_t left;
};

static void faucet_free(struct faucet *faucet) {
  streams_remove(&faucet->agent->streams, &faucet->stream);
  outflow_stop(&faucet->flow);
  free(faucet);
}

static ssize_t faucet_produce(struct outflow *flow, uint8_t *into, size_t room) {
  struct faucet *faucet = container_of(flow, struct faucet, flow);
  size_t length = minimum(room, faucet->left);
  memset(into, (int)(faucet->left & 0xff), length);
  faucet->left -= length;
  return (ssize_t)length;
}

static void faucet_done(struct outflow *flow, int error) {
  (void)error;
  outflow_finish(flow);
}

static void faucet_finished(struct outflow *flow) { faucet_free(container_of(flow, struct faucet, flow)); }

static void faucet_credit(struct stream *stream, uint32_t bytes) {
  outflow_grant(&container_of(stream, struct faucet, stream)->flow, bytes);
}

static void faucet_reset(struct stream *stream) { faucet_free(container_of(stream, struct faucet, stream)); }

static void faucet_upheaval(struct stream *stream, int what) {
  struct faucet *faucet = container_of(stream, struct faucet, stream);
  if (what == UPHEAVAL_ZERO_CREDIT) {
    outflow_zero_credit(&faucet->flow);
  } else {
    faucet_free(faucet);
  }
}

static const struct stream_ops faucet_ops = {
    .credit = faucet_credit,
    .reset = faucet_reset,
    .upheaval = faucet_upheaval,
};

void bench_source(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  uint64_t bytes = take_u64(&reader);
  uint32_t frame = take_u32(&reader);
  if (frame == 0 || frame > MAX_DATA) {
    channel_respond_error(&agent->channel, request->stream, STATUS_INVALID, 0, "frame size");
    return;
  }
  struct faucet *faucet = must_alloc(sizeof *faucet);
  faucet->agent = agent;
  faucet->left = bytes;
  outflow_init(&faucet->flow, agent, request->stream);
  faucet->flow.produce = faucet_produce;
  faucet->flow.done = faucet_done;
  faucet->flow.finished = faucet_finished;
  faucet->flow.frame = frame;
  streams_add(&agent->streams, &faucet->stream, request->stream, &faucet_ops);
  channel_respond_ok(&agent->channel, request->stream);
  outflow_start(&faucet->flow, -1);
}

struct drain {
  struct agent *agent;
  struct stream stream;
  uint64_t received;
};

static void drain_free(struct drain *drain) {
  streams_remove(&drain->agent->streams, &drain->stream);
  free(drain);
}

static bool drain_data(struct stream *stream, const uint8_t *data, size_t length) {
  (void)data;
  struct drain *drain = container_of(stream, struct drain, stream);
  drain->received += length;
  channel_send_u32(&drain->agent->channel, stream->id, FRAME_CREDIT, (uint32_t)length);
  return true;
}

static void drain_eof(struct stream *stream) {
  struct drain *drain = container_of(stream, struct drain, stream);
  put_u64(channel_respond(&drain->agent->channel, stream->id), drain->received);
  channel_end(&drain->agent->channel);
  drain_free(drain);
}

static void drain_reset(struct stream *stream) { drain_free(container_of(stream, struct drain, stream)); }

static void drain_upheaval(struct stream *stream, int what) {
  if (what != UPHEAVAL_ZERO_CREDIT) drain_reset(stream);
}

static const struct stream_ops drain_ops = {
    .data = drain_data,
    .eof = drain_eof,
    .reset = drain_reset,
    .upheaval = drain_upheaval,
};

void bench_sink(struct agent *agent, const struct request *request) {
  struct drain *drain = must_alloc(sizeof *drain);
  drain->agent = agent;
  streams_add(&agent->streams, &drain->stream, request->stream, &drain_ops);
}
