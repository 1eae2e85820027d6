#define _GNU_SOURCE /* accept4 */
#include "channel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "protocol.gen.h"
#include "util.h"

/* How much DATA is lined up before control frames get their turn again, bytes. */
#define FILL MAX_DATA
/* Control frames waiting beyond this, bytes, stop the reading of requests and events. */
#define CONGESTED (512u * 1024)
/* Reads and writes of one turn, so that others get theirs. A virtio port gives 4 KiB to each read. */
#define READS 64
#define WRITES 16
/* A virtio port takes this much at once, bytes: frames are cut so that they fill it. */
#define PORT_WRITE 32768u

static void disconnect(struct channel *channel) {
  loop_close_source(&channel->agent->loop, &channel->source);
  channel->readable = channel->writable = false;
  buffer_clear(&channel->sending);
  buffer_clear(&channel->control);
  decoder_reset(&channel->decoder);
  /* One client at a time: the next one waits in the backlog until now. */
  loop_watch(&channel->agent->loop, &channel->listener, EPOLLIN);
}

static void channel_event(struct source *source, uint32_t events) {
  struct channel *channel = container_of(source, struct channel, source);
  /* A port without a host reports EPOLLIN | EPOLLHUP; the read then says 0, which only means "not now". */
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) channel->readable = true;
  if ((events & (EPOLLOUT | EPOLLERR)) != 0) channel->writable = true;
}

static void accept_client(struct source *listener, uint32_t events) {
  (void)events;
  struct channel *channel = container_of(listener, struct channel, listener);
  int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  loop_unwatch(&channel->agent->loop, listener);
  channel->source.fd = fd;
  channel->readable = channel->writable = true;
  loop_watch(&channel->agent->loop, &channel->source, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

static void open_common(struct channel *channel, struct agent *agent) {
  memset(channel, 0, sizeof *channel);
  channel->agent = agent;
  channel->source = (struct source){.fd = -1, .ready = channel_event};
  channel->listener = (struct source){.fd = -1, .ready = accept_client};
  decoder_open(&channel->decoder);
}

void channel_open_port(struct channel *channel, struct agent *agent, int fd) {
  open_common(channel, agent);
  channel->is_port = true;
  channel->source.fd = fd;
  channel->readable = channel->writable = true;
  loop_watch(&agent->loop, &channel->source, EPOLLIN | EPOLLOUT | EPOLLET);
}

void channel_open_listener(struct channel *channel, struct agent *agent, int fd) {
  open_common(channel, agent);
  channel->listener.fd = fd;
  loop_watch(&agent->loop, &channel->listener, EPOLLIN);
}

void channel_close(struct channel *channel) {
  loop_close_source(&channel->agent->loop, &channel->source);
  loop_close_source(&channel->agent->loop, &channel->listener);
  buffer_free(&channel->sending);
  buffer_free(&channel->control);
  decoder_close(&channel->decoder);
}

void channel_put_header(struct buffer *into, uint32_t stream, uint8_t type, uint32_t length) {
  uint8_t *header = buffer_reserve(into, FRAME_HEADER);
  store_u32(header, length);
  store_u32(header + 4, stream);
  header[8] = type;
  into->end += FRAME_HEADER;
}

struct buffer *channel_begin(struct channel *channel, uint32_t stream, uint8_t type) {
  channel->frame_start = buffer_length(&channel->control);
  channel_put_header(&channel->control, stream, type, 0);
  return &channel->control;
}

void channel_end(struct channel *channel) {
  size_t length = buffer_length(&channel->control) - channel->frame_start - FRAME_HEADER;
  if (length <= MAX_CONTROL) {
    patch_u32(&channel->control, channel->frame_start, (uint32_t)length);
    return;
  }
  uint32_t stream = load_u32(buffer_head(&channel->control) + channel->frame_start + 4);
  channel->control.end = channel->control.start + channel->frame_start;
  channel_respond_error(channel, stream, STATUS_LIMIT, 0, "the answer is too large");
}

void channel_send_u32(struct channel *channel, uint32_t stream, uint8_t type, uint32_t value) {
  put_u32(channel_begin(channel, stream, type), value);
  channel_end(channel);
}

struct buffer *channel_respond(struct channel *channel, uint32_t stream) {
  struct buffer *body = channel_begin(channel, stream, FRAME_RESPONSE);
  put_u32(body, STATUS_OK);
  return body;
}

void channel_respond_ok(struct channel *channel, uint32_t stream) {
  channel_respond(channel, stream);
  channel_end(channel);
}

void channel_respond_error(struct channel *channel, uint32_t stream, uint32_t status, int error, const char *message) {
  struct buffer *body = channel_begin(channel, stream, FRAME_RESPONSE);
  put_u32(body, status);
  put_u32(body, (uint32_t)error);
  put_string(body, message);
  channel_end(channel);
}

void channel_respond_raw(struct channel *channel, uint32_t stream, const uint8_t *payload, size_t length) {
  buffer_append(channel_begin(channel, stream, FRAME_RESPONSE), payload, length);
  channel_end(channel);
}

bool channel_congested(const struct channel *channel) { return buffer_length(&channel->control) > CONGESTED; }

void channel_hold(struct channel *channel) {
  buffer_append(&channel->sending, buffer_head(&channel->control), buffer_length(&channel->control));
  buffer_clear(&channel->control);
  channel->held = true;
}

void channel_release(struct channel *channel) { channel->held = false; }

void channel_enqueue(struct channel *channel, struct outflow *flow) {
  flow->queued = true;
  channel->ready_count++;
  if (channel->ready == NULL) {
    channel->ready = flow->next = flow->previous = flow;
    return;
  }
  struct outflow *first = channel->ready;
  flow->next = first;
  flow->previous = first->previous;
  first->previous->next = flow;
  first->previous = flow;
}

void channel_dequeue(struct channel *channel, struct outflow *flow) {
  flow->queued = false;
  channel->ready_count--;
  if (flow->next == flow) {
    channel->ready = NULL;
    return;
  }
  flow->previous->next = flow->next;
  flow->next->previous = flow->previous;
  if (channel->ready == flow) channel->ready = flow->next;
}

void channel_owe(struct channel *channel, struct inflow *flow) {
  flow->owing = true;
  flow->next_owing = channel->owing;
  channel->owing = flow;
}

void channel_forget_owing(struct channel *channel, struct inflow *flow) {
  struct inflow **at = &channel->owing;
  while (*at != flow) at = &(*at)->next_owing;
  *at = flow->next_owing;
  flow->owing = false;
}

static void return_credit(struct channel *channel) {
  while (channel->owing != NULL) {
    struct inflow *flow = channel->owing;
    channel_forget_owing(channel, flow);
    inflow_return_credit(flow);
  }
}

/* A new connection: what was on its way belongs to the former one. */
static void resync(struct channel *channel) {
  channel->credit = 0;
  agent_upheaval(channel->agent, UPHEAVAL_RESYNC);
  buffer_clear(&channel->sending);
  buffer_clear(&channel->control);
  channel->held = false;
  buffer_append(&channel->sending, channel->decoder.nonce, NONCE_SIZE);
  buffer_append(&channel->sending, channel->decoder.nonce, NONCE_SIZE);
}

static void handle_input(struct channel *channel) {
  struct frame frame;
  while (!channel_congested(channel)) {
    switch (decoder_next(&channel->decoder, &frame)) {
      case DECODED_NOTHING: return;
      case DECODED_RESYNC: resync(channel); break;
      case DECODED_FRAME:
        if (!dispatch_frame(channel->agent, &frame)) decoder_lose_sync(&channel->decoder);
        break;
    }
  }
}

static void receive(struct channel *channel) {
  ssize_t got = read(channel->source.fd, decoder_room(&channel->decoder), DECODER_READ);
  if (got > 0) {
    decoder_filled(&channel->decoder, (size_t)got);
    return;
  }
  if (got < 0 && errno == EINTR) return;
  channel->readable = false;
  if (!channel->is_port && (got == 0 || errno != EAGAIN)) disconnect(channel);
}

static void line_up_control(struct channel *channel) {
  struct buffer empty = channel->sending;
  channel->sending = channel->control;
  channel->control = empty;
}

/* The largest payload whose frame ends with a write, or with the next one when there is hardly room in this. */
static size_t room_in_write(const struct buffer *sending) {
  size_t left = PORT_WRITE - buffer_length(sending) % PORT_WRITE;
  if (left < PORT_WRITE / 8) left += PORT_WRITE;
  return left - FRAME_HEADER;
}

/* A little DATA of every ready flow in turn. */
static void line_up_data(struct channel *channel) {
  /* Without channel credit flows stay where they are, but an EOF may pass. */
  size_t passes = channel->ready_count;
  while (channel->ready != NULL && buffer_length(&channel->sending) < FILL) {
    struct outflow *flow = channel->ready;
    size_t limit = minimum(minimum(flow->frame, room_in_write(&channel->sending)), channel->credit);
    if (limit == 0 && !flow->eof_due) {
      if (passes-- == 0) return;
      channel->ready = flow->next;
      continue;
    }
    channel_dequeue(channel, flow);
    channel->credit -= outflow_pull(flow, &channel->sending, limit);
  }
}

/* Lines up what leaves next: control frames first. */
static void fill(struct channel *channel) {
  if (buffer_length(&channel->sending) > 0 || channel->held) return;
  if (buffer_length(&channel->control) == 0) line_up_data(channel);
  /* A flow that failed left a RESET instead of DATA. */
  if (buffer_length(&channel->sending) == 0) line_up_control(channel);
}

static void transmit(struct channel *channel) {
  ssize_t sent = write(channel->source.fd, buffer_head(&channel->sending), buffer_length(&channel->sending));
  if (sent > 0) {
    buffer_consume(&channel->sending, (size_t)sent);
  } else if (sent == 0 || errno == EAGAIN) {
    channel->writable = false;
  } else if (errno != EINTR) {
    channel->writable = false;
    if (!channel->is_port) disconnect(channel);
  }
}

/* Reads and handles what has arrived; whether there may be more. */
static bool service_input(struct channel *channel) {
  for (int reads = 0; reads < READS; reads++) {
    handle_input(channel);
    channel->stalled = channel_congested(channel);
    if (!channel->readable || channel->stalled) return false;
    receive(channel);
  }
  handle_input(channel);
  return true;
}

/* Sends what can be sent; whether there may be more. */
static bool service_output(struct channel *channel) {
  for (int writes = 0; writes < WRITES; writes++) {
    fill(channel);
    if (buffer_length(&channel->sending) == 0 || !channel->writable) return false;
    transmit(channel);
  }
  return true;
}

void channel_service(struct channel *channel) {
  bool more = service_input(channel);
  return_credit(channel);
  if (channel->decoder.synced) {
    more |= service_output(channel);
  } else {
    /* Whoever connects next starts with a resync, which would drop this anyway. */
    buffer_clear(&channel->sending);
    buffer_clear(&channel->control);
  }
  more |= channel->stalled && !channel_congested(channel);
  if (more) channel->agent->loop.unfinished = true;
}
