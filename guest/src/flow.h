/* The two directions of a byte stream: an outflow carries a descriptor's bytes to the host, an inflow the host's bytes to a
 * descriptor. Both keep to credit, so neither ever holds more than a window. */
#ifndef AENV_FLOW_H
#define AENV_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "buffer.h"
#include "loop.h"

struct agent;

struct outflow {
  struct agent *agent;
  struct source source; /* edge-triggered; fd -1 until started */
  uint32_t stream;
  uint64_t credit;
  uint64_t sent;    /* bytes since the start */
  uint32_t frame;   /* largest payload of one DATA frame */
  bool readable;    /* no EAGAIN since the last edge */
  bool source_done; /* read to its end or failed */
  bool eof_due;     /* the EOF frame leaves at the next turn */
  bool queued;      /* in the channel's ring of ready flows */
  struct outflow *previous;
  struct outflow *next;
  /* Where bytes come from when it is not `source.fd`; like read(2). */
  ssize_t (*produce)(struct outflow *flow, uint8_t *into, size_t room);
  /* The source ended (error 0) or failed. The owner answers with outflow_finish, or ends the stream. May free the flow. */
  void (*done)(struct outflow *flow, int error);
  /* The EOF frame is on its way. May free the flow. */
  void (*finished)(struct outflow *flow);
};

void outflow_init(struct outflow *flow, struct agent *agent, uint32_t stream);
/* Starts to carry a descriptor, which the flow owns from here on; -1 with `produce` set. */
void outflow_start(struct outflow *flow, int fd);
void outflow_grant(struct outflow *flow, uint32_t bytes);
void outflow_zero_credit(struct outflow *flow);
/* Sends EOF behind what was sent. */
void outflow_finish(struct outflow *flow);
/* Ends the flow silently and closes its descriptor. */
void outflow_stop(struct outflow *flow);
/* The source may have something without its descriptor having told. */
void outflow_poke(struct outflow *flow);
/* Moves at most `limit` bytes of DATA as one frame into `into`; the bytes moved. May free the flow. */
size_t outflow_pull(struct outflow *flow, struct buffer *into, size_t limit);

struct inflow {
  struct agent *agent;
  struct source source; /* level-triggered, watched for EPOLLOUT only while bytes wait; fd -1 until started */
  /* Where bytes go when it is not `source.fd`; like write(2), and an edge of EPOLLIN on `source.fd` follows EAGAIN. */
  ssize_t (*take)(struct inflow *flow, const uint8_t *data, size_t length);
  uint32_t stream;
  struct buffer queue;
  uint32_t window;   /* bytes the host may send */
  size_t uncredited; /* bytes at the head of the queue whose credit belongs to a former connection */
  uint32_t owed;     /* bytes written whose credit has not been returned */
  struct inflow *next_owing; /* in the channel's list of flows that owe credit */
  bool owing;
  bool eof;
  bool closed; /* nothing is accepted any more */
  /* EOF arrived and everything before it was written. May free the flow. */
  void (*drained)(struct inflow *flow);
  /* The reader of the descriptor is gone. May free the flow. */
  void (*failed)(struct inflow *flow, int error);
};

void inflow_init(struct inflow *flow, struct agent *agent, uint32_t stream);
void inflow_start(struct inflow *flow, int fd);
/* DATA from the host; false when it exceeds the window. May free the flow. */
bool inflow_push(struct inflow *flow, const uint8_t *data, size_t length);
/* EOF from the host. May free the flow. */
void inflow_end(struct inflow *flow);
/* A new connection gives the host a full window again. */
void inflow_restart_window(struct inflow *flow);
void inflow_stop(struct inflow *flow);
/* Returns the credit of everything written since the last time: one frame for many small pieces. */
void inflow_return_credit(struct inflow *flow);

#endif
