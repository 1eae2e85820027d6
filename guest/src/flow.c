#include "flow.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "protocol.gen.h"
#include "util.h"

/* Best throughput and short waits for others (PROTOCOL.md, MAX_DATA). */
#define USUAL_FRAME 32768u

/* Bytes of a stuck reader that survive any number of new connections. */
#define INFLOW_LIMIT (4 * STREAM_WINDOW)

static bool outflow_ready(const struct outflow *flow) {
  return flow->eof_due || (flow->readable && !flow->source_done && flow->credit > 0);
}

static void queue_if_ready(struct outflow *flow) {
  if (!flow->queued && outflow_ready(flow)) channel_enqueue(&flow->agent->channel, flow);
}

void outflow_poke(struct outflow *flow) {
  flow->readable = true;
  queue_if_ready(flow);
}

static void outflow_edge(struct source *source, uint32_t events) {
  (void)events;
  outflow_poke(container_of(source, struct outflow, source));
}

void outflow_init(struct outflow *flow, struct agent *agent, uint32_t stream) {
  *flow = (struct outflow){
      .agent = agent,
      .stream = stream,
      .frame = USUAL_FRAME,
      .source = {.fd = -1, .ready = outflow_edge},
  };
}

void outflow_start(struct outflow *flow, int fd) {
  flow->source.fd = fd;
  flow->readable = true;
  if (fd >= 0) loop_watch(&flow->agent->loop, &flow->source, EPOLLIN | EPOLLRDHUP | EPOLLET);
  queue_if_ready(flow);
}

void outflow_grant(struct outflow *flow, uint32_t bytes) {
  flow->credit += bytes;
  queue_if_ready(flow);
}

void outflow_zero_credit(struct outflow *flow) {
  flow->credit = 0;
  if (flow->queued && !outflow_ready(flow)) channel_dequeue(&flow->agent->channel, flow);
}

void outflow_finish(struct outflow *flow) {
  flow->source_done = true;
  flow->eof_due = true;
  queue_if_ready(flow);
}

void outflow_stop(struct outflow *flow) {
  if (flow->queued) channel_dequeue(&flow->agent->channel, flow);
  flow->readable = flow->eof_due = false;
  flow->source_done = true;
  loop_close_source(&flow->agent->loop, &flow->source);
}

static ssize_t produce(struct outflow *flow, uint8_t *into, size_t room) {
  return flow->produce != NULL ? flow->produce(flow, into, room) : read(flow->source.fd, into, room);
}

size_t outflow_pull(struct outflow *flow, struct buffer *into, size_t limit) {
  if (flow->eof_due) {
    flow->eof_due = false;
    channel_put_header(into, flow->stream, FRAME_EOF, 0);
    loop_close_source(&flow->agent->loop, &flow->source);
    flow->finished(flow);
    return 0;
  }
  /* Less credit than a frame makes a smaller frame: waiting for a whole one could wait for ever. */
  size_t room = minimum(limit, flow->credit);
  uint8_t *payload = buffer_reserve(into, FRAME_HEADER + room) + FRAME_HEADER;
  size_t length = 0;
  int error = 0;
  bool ended = false;
  while (length < room && !ended) {
    ssize_t got = produce(flow, payload + length, room - length);
    if (got > 0) {
      length += (size_t)got;
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && errno == EAGAIN) {
      flow->readable = false;
      break;
    } else {
      ended = true;
      error = got < 0 ? errno : 0;
    }
  }
  if (length > 0) {
    channel_put_header(into, flow->stream, FRAME_DATA, (uint32_t)length);
    into->end += length;
    flow->credit -= length;
    flow->sent += length;
  }
  if (ended) {
    flow->source_done = true;
    loop_unwatch(&flow->agent->loop, &flow->source);
    flow->done(flow, error);
  } else {
    queue_if_ready(flow);
  }
  return length;
}

static void inflow_event(struct source *source, uint32_t events);

void inflow_init(struct inflow *flow, struct agent *agent, uint32_t stream) {
  *flow = (struct inflow){
      .agent = agent,
      .stream = stream,
      .window = STREAM_WINDOW,
      .source = {.fd = -1, .ready = inflow_event},
  };
}

static void inflow_fail(struct inflow *flow, int error) {
  flow->closed = true;
  buffer_free(&flow->queue);
  loop_unwatch(&flow->agent->loop, &flow->source);
  flow->failed(flow, error);
}

/* Writes what the descriptor takes; the bytes, or -1 when it failed for good. */
static ssize_t write_some(struct inflow *flow, const uint8_t *data, size_t length) {
  size_t done = 0;
  while (done < length) {
    ssize_t written = flow->take != NULL ? flow->take(flow, data + done, length - done)
                                         : write(flow->source.fd, data + done, length - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    if (written < 0) return -1;
    done += (size_t)written;
  }
  return (ssize_t)done;
}

/* The credit returns at the end of the turn. */
static void owe(struct inflow *flow, size_t bytes) {
  size_t former = minimum(bytes, flow->uncredited);
  flow->uncredited -= former;
  flow->owed += (uint32_t)(bytes - former);
  if (flow->owed > 0 && !flow->owing) channel_owe(&flow->agent->channel, flow);
}

void inflow_return_credit(struct inflow *flow) {
  if (flow->owed > 0) channel_send_u32(&flow->agent->channel, flow->stream, FRAME_CREDIT, flow->owed);
  flow->window += flow->owed;
  flow->owed = 0;
}

/* After a write: waits for room, or reports the end. May free the flow. */
static void settle(struct inflow *flow) {
  bool waiting = buffer_length(&flow->queue) > 0;
  uint32_t events = flow->take != NULL ? (uint32_t)(EPOLLIN | EPOLLET) : (waiting ? EPOLLOUT : 0);
  loop_watch(&flow->agent->loop, &flow->source, events);
  if (!waiting && flow->eof && !flow->closed) {
    flow->closed = true;
    flow->drained(flow);
  }
}

static void pump(struct inflow *flow) {
  size_t waiting = buffer_length(&flow->queue);
  if (waiting > 0) {
    ssize_t written = write_some(flow, buffer_head(&flow->queue), waiting);
    if (written < 0) {
      inflow_fail(flow, errno);
      return;
    }
    buffer_consume(&flow->queue, (size_t)written);
    owe(flow, (size_t)written);
  }
  settle(flow);
}

static void inflow_event(struct source *source, uint32_t events) {
  struct inflow *flow = container_of(source, struct inflow, source);
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    inflow_fail(flow, EPIPE);
  } else {
    pump(flow);
  }
}

void inflow_start(struct inflow *flow, int fd) {
  flow->source.fd = fd;
  pump(flow);
}

bool inflow_push(struct inflow *flow, const uint8_t *data, size_t length) {
  if (flow->closed) return true; /* it was on its way when the reader ended */
  if (flow->eof || length > flow->window) return false;
  flow->window -= (uint32_t)length;
  size_t done = 0;
  if (flow->source.fd >= 0 && buffer_length(&flow->queue) == 0) {
    ssize_t written = write_some(flow, data, length);
    if (written < 0) {
      inflow_fail(flow, errno);
      return true;
    }
    done = (size_t)written;
    owe(flow, done);
  }
  buffer_append(&flow->queue, data + done, length - done);
  if (flow->source.fd >= 0) settle(flow);
  return true;
}

void inflow_end(struct inflow *flow) {
  if (flow->closed) return;
  flow->eof = true;
  if (flow->source.fd >= 0) settle(flow);
}

void inflow_restart_window(struct inflow *flow) {
  flow->uncredited = buffer_length(&flow->queue);
  flow->owed = 0;
  flow->window = STREAM_WINDOW;
  if (flow->uncredited >= INFLOW_LIMIT && !flow->closed) inflow_fail(flow, EPIPE);
}

void inflow_stop(struct inflow *flow) {
  flow->closed = true;
  if (flow->owing) channel_forget_owing(&flow->agent->channel, flow);
  buffer_free(&flow->queue);
  loop_close_source(&flow->agent->loop, &flow->source);
}
