/* The agent channel: one virtio port or unix socket, the frames that leave on it, and their order. */
#ifndef AENV_CHANNEL_H
#define AENV_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer.h"
#include "decoder.h"
#include "flow.h"
#include "loop.h"

struct agent;

struct channel {
  struct agent *agent;
  struct source source;   /* the port or the connected socket; edge-triggered */
  struct source listener; /* fd -1 with a port */
  bool is_port;
  bool readable;
  bool writable;
  bool stalled; /* requests wait for the answers before them to leave */
  bool held;    /* quiesced: nothing leaves behind what is in `sending` */
  struct decoder decoder;
  struct buffer sending; /* whole frames on their way, the first one perhaps partly sent */
  struct buffer control; /* control frames, they leave as soon as `sending` is empty */
  size_t frame_start;    /* of the frame between begin and end, in `control` */
  uint64_t credit;       /* for all DATA together */
  struct outflow *ready; /* ring of flows that could send; the first is next */
  size_t ready_count;
  struct inflow *owing; /* flows whose credit returns at the end of this turn */
};

/* Takes over an open virtio port, or a listening unix socket. */
void channel_open_port(struct channel *channel, struct agent *agent, int fd);
void channel_open_listener(struct channel *channel, struct agent *agent, int fd);
void channel_close(struct channel *channel);

/* Reads, handles, fills and writes, within bounds; called once per turn of the loop. */
void channel_service(struct channel *channel);

/* A control frame: begin, write the payload into the buffer, end. */
struct buffer *channel_begin(struct channel *channel, uint32_t stream, uint8_t type);
void channel_end(struct channel *channel);
/* CREDIT or RESET. */
void channel_send_u32(struct channel *channel, uint32_t stream, uint8_t type, uint32_t value);
/* A RESPONSE: with a body (to be ended by channel_end), empty, or an error. */
struct buffer *channel_respond(struct channel *channel, uint32_t stream);
void channel_respond_ok(struct channel *channel, uint32_t stream);
void channel_respond_error(struct channel *channel, uint32_t stream, uint32_t status, int error, const char *message);
/* A RESPONSE whose payload (status and body) somebody else has made. */
void channel_respond_raw(struct channel *channel, uint32_t stream, const uint8_t *payload, size_t length);

/* Whether so much waits to be sent that nobody should produce more. */
bool channel_congested(const struct channel *channel);
/* Everything queued so far leaves, then nothing until channel_release. */
void channel_hold(struct channel *channel);
void channel_release(struct channel *channel);

void channel_enqueue(struct channel *channel, struct outflow *flow);
void channel_dequeue(struct channel *channel, struct outflow *flow);
void channel_owe(struct channel *channel, struct inflow *flow);
void channel_forget_owing(struct channel *channel, struct inflow *flow);
void channel_put_header(struct buffer *into, uint32_t stream, uint8_t type, uint32_t length);

#endif
