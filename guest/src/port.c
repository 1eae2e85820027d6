#define _GNU_SOURCE
#include "port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "protocol.gen.h"
#include "util.h"

#define MAX_CONNECTIONS 512u
#define MAX_LISTENERS 64u
#define BACKLOG 128
#define GUEST_STREAMS 0x80000000u
/* A connect that nobody answers, when the request has no deadline of its own. */
#define CONNECT_DEADLINE_MS 10000u
#define MAX_ADDRESSES 3

union address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

struct connection {
  struct agent *agent;
  struct stream stream;
  struct source attempt; /* while connecting */
  struct timer deadline;
  union address addresses[MAX_ADDRESSES]; /* to be tried in turn */
  size_t address_count;
  size_t next_address;
  int last_error;
  struct inflow in;   /* on a duplicate of the socket, as one descriptor cannot be watched twice */
  struct outflow out;
  bool in_done;
  bool in_failed;
  bool out_done;
};

static void connection_free(struct connection *connection) {
  struct agent *agent = connection->agent;
  streams_remove(&agent->streams, &connection->stream);
  loop_disarm(&agent->loop, &connection->deadline);
  loop_close_source(&agent->loop, &connection->attempt);
  inflow_stop(&connection->in);
  outflow_stop(&connection->out);
  agent->ports.connections--;
  free(connection);
}

/* Ends at once; the peer sees a reset, not an orderly end that could be taken for a complete transfer. */
static void connection_abort(struct connection *connection) {
  struct linger now = {.l_onoff = 1};
  int fd = connection->out.source.fd >= 0 ? connection->out.source.fd : connection->in.source.fd;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  connection_free(connection);
}

static void send_reset(struct connection *connection) {
  channel_send_u32(&connection->agent->channel, connection->stream.id, FRAME_RESET, STATUS_IO);
}

static void free_if_over(struct connection *connection) {
  if (!connection->in_done || !connection->out_done) return;
  if (connection->in_failed) send_reset(connection);
  connection_free(connection);
}

static bool stream_data(struct stream *stream, const uint8_t *data, size_t length) {
  return inflow_push(&container_of(stream, struct connection, stream)->in, data, length);
}

static void stream_eof(struct stream *stream) { inflow_end(&container_of(stream, struct connection, stream)->in); }

static void stream_credit(struct stream *stream, uint32_t bytes) {
  outflow_grant(&container_of(stream, struct connection, stream)->out, bytes);
}

static void stream_reset(struct stream *stream) { connection_abort(container_of(stream, struct connection, stream)); }

static void stream_upheaval(struct stream *stream, int what) {
  struct connection *connection = container_of(stream, struct connection, stream);
  if (what == UPHEAVAL_ZERO_CREDIT) {
    outflow_zero_credit(&connection->out);
  } else {
    connection_abort(connection);
  }
}

static const struct stream_ops connection_ops = {
    .data = stream_data,
    .eof = stream_eof,
    .credit = stream_credit,
    .reset = stream_reset,
    .upheaval = stream_upheaval,
};

static void in_drained(struct inflow *flow) {
  struct connection *connection = container_of(flow, struct connection, in);
  shutdown(flow->source.fd, SHUT_WR);
  inflow_stop(flow);
  connection->in_done = true;
  free_if_over(connection);
}

/* The peer takes no more. What it sent before is still delivered; then the end is a reset. */
static void in_failed(struct inflow *flow, int error) {
  (void)error;
  struct connection *connection = container_of(flow, struct connection, in);
  inflow_stop(flow);
  connection->in_done = connection->in_failed = true;
  free_if_over(connection);
}

static void out_done(struct outflow *flow, int error) {
  struct connection *connection = container_of(flow, struct connection, out);
  if (error == 0) {
    outflow_finish(flow);
    return;
  }
  send_reset(connection);
  connection_free(connection);
}

static void out_finished(struct outflow *flow) {
  struct connection *connection = container_of(flow, struct connection, out);
  connection->out_done = true;
  free_if_over(connection);
}

static struct connection *connection_new(struct agent *agent, uint32_t id) {
  struct connection *connection = must_alloc(sizeof *connection);
  connection->agent = agent;
  connection->attempt.fd = -1;
  inflow_init(&connection->in, agent, id);
  connection->in.drained = in_drained;
  connection->in.failed = in_failed;
  outflow_init(&connection->out, agent, id);
  connection->out.done = out_done;
  connection->out.finished = out_finished;
  streams_add(&agent->streams, &connection->stream, id, &connection_ops);
  agent->ports.connections++;
  return connection;
}

/* The socket is connected: carries it from here on. Takes over the descriptor; false when that is impossible. */
static bool connection_start(struct connection *connection, int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    close(fd);
    return false;
  }
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  outflow_start(&connection->out, fd);
  inflow_start(&connection->in, copy);
  return true;
}

static void address_text(const union address *address, char *into, size_t size) {
  const void *bytes = address->any.sa_family == AF_INET6 ? (const void *)&address->v6.sin6_addr : &address->v4.sin_addr;
  if (inet_ntop(address->any.sa_family, bytes, into, (socklen_t)size) == NULL) into[0] = '\0';
}

/* --- connect ---------------------------------------------------------------------------------------------------- */

static void try_next(struct connection *connection);

static void established(struct connection *connection) {
  struct agent *agent = connection->agent;
  char text[INET6_ADDRSTRLEN];
  int fd = connection->attempt.fd;
  loop_unwatch(&agent->loop, &connection->attempt);
  connection->attempt.fd = -1;
  loop_disarm(&agent->loop, &connection->deadline);
  address_text(&connection->addresses[connection->next_address - 1], text, sizeof text);
  put_string(channel_respond(&agent->channel, connection->stream.id), text);
  channel_end(&agent->channel);
  if (connection_start(connection, fd)) return;
  send_reset(connection);
  connection_free(connection);
}

static void attempt_ready(struct source *source, uint32_t events) {
  (void)events;
  struct connection *connection = container_of(source, struct connection, attempt);
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) {
    established(connection);
    return;
  }
  connection->last_error = error;
  loop_close_source(&connection->agent->loop, source);
  try_next(connection);
}

static void connect_due(struct timer *timer) {
  struct connection *connection = container_of(timer, struct connection, deadline);
  channel_respond_error(&connection->agent->channel, connection->stream.id, STATUS_DEADLINE, 0, "connect timed out");
  connection_free(connection);
}

static void try_next(struct connection *connection) {
  struct agent *agent = connection->agent;
  while (connection->next_address < connection->address_count) {
    const union address *address = &connection->addresses[connection->next_address++];
    bool v6 = address->any.sa_family == AF_INET6;
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      connection->last_error = errno;
      continue;
    }
    connection->attempt = (struct source){.fd = fd, .ready = attempt_ready};
    int result = connect(fd, &address->any, v6 ? sizeof address->v6 : sizeof address->v4);
    if (result == 0) {
      established(connection);
      return;
    }
    if (errno == EINPROGRESS) {
      loop_watch(&agent->loop, &connection->attempt, EPOLLOUT);
      return;
    }
    connection->last_error = errno;
    close_fd(&connection->attempt.fd);
  }
  channel_respond_error(&agent->channel, connection->stream.id, STATUS_REFUSED, connection->last_error,
                        strerror(connection->last_error));
  connection_free(connection);
}

static void add_address(struct connection *connection, const char *text, uint16_t port) {
  union address *address = &connection->addresses[connection->address_count];
  if (inet_pton(AF_INET, text, &address->v4.sin_addr) == 1) {
    address->v4.sin_family = AF_INET;
    address->v4.sin_port = htons(port);
  } else if (inet_pton(AF_INET6, text, &address->v6.sin6_addr) == 1) {
    address->v6.sin6_family = AF_INET6;
    address->v6.sin6_port = htons(port);
  } else {
    return;
  }
  connection->address_count++;
}

void port_connect(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  uint16_t port = take_u16(&reader);
  struct span slot = take_span(&reader);
  char slot_address[INET6_ADDRSTRLEN] = "";
  if (slot.length > 0 && slot.length < sizeof slot_address) memcpy(slot_address, slot.data, slot.length);
  if (port == 0) {
    channel_respond_error(&agent->channel, request->stream, STATUS_INVALID, EINVAL, "port 0");
    return;
  }
  if (agent->ports.connections >= MAX_CONNECTIONS) {
    channel_respond_error(&agent->channel, request->stream, STATUS_LIMIT, 0, "too many connections");
    return;
  }
  struct connection *connection = connection_new(agent, request->stream);
  add_address(connection, "127.0.0.1", port);
  add_address(connection, "::1", port);
  add_address(connection, slot_address, port);
  uint32_t deadline_ms = request->deadline_ms > 0 ? request->deadline_ms : CONNECT_DEADLINE_MS;
  connection->deadline.fire = connect_due;
  loop_arm(&agent->loop, &connection->deadline, monotonic_ns() + deadline_ms * NS_PER_MS);
  try_next(connection);
}

/* --- listen ----------------------------------------------------------------------------------------------------- */

struct listener {
  struct agent *agent;
  struct stream stream;
  struct source v4;
  struct source v6;
};

static void listener_free(struct listener *listener) {
  streams_remove(&listener->agent->streams, &listener->stream);
  loop_close_source(&listener->agent->loop, &listener->v4);
  loop_close_source(&listener->agent->loop, &listener->v6);
  listener->agent->ports.listeners--;
  free(listener);
}

static void listener_reset(struct stream *stream) { listener_free(container_of(stream, struct listener, stream)); }

static void listener_upheaval(struct stream *stream, int what) {
  if (what != UPHEAVAL_ZERO_CREDIT) listener_reset(stream);
}

static const struct stream_ops listener_ops = {.reset = listener_reset, .upheaval = listener_upheaval};

static uint32_t fresh_id(struct agent *agent) {
  uint32_t id;
  do {
    id = GUEST_STREAMS | (agent->ports.next_id++ & ~GUEST_STREAMS);
  } while (streams_find(&agent->streams, id) != NULL);
  return id;
}

static void accepted(struct listener *listener, int fd, const union address *peer) {
  struct agent *agent = listener->agent;
  if (agent->ports.connections >= MAX_CONNECTIONS) {
    close(fd);
    return;
  }
  uint32_t id = fresh_id(agent);
  struct buffer *body = channel_begin(&agent->channel, listener->stream.id, FRAME_EVENT);
  put_u16(body, EVENT_ACCEPTED);
  put_u32(body, id);
  put_u16(body, ntohs(peer->any.sa_family == AF_INET6 ? peer->v6.sin6_port : peer->v4.sin_port));
  channel_end(&agent->channel);
  struct connection *connection = connection_new(agent, id);
  if (connection_start(connection, fd)) return;
  send_reset(connection);
  connection_free(connection);
}

static void accept_ready(struct listener *listener, int listening) {
  union address peer;
  socklen_t size = sizeof peer;
  int fd = accept4(listening, &peer.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) accepted(listener, fd, &peer);
}

static void accept_v4(struct source *source, uint32_t events) {
  (void)events;
  accept_ready(container_of(source, struct listener, v4), source->fd);
}

static void accept_v6(struct source *source, uint32_t events) {
  (void)events;
  accept_ready(container_of(source, struct listener, v6), source->fd);
}

/* A listening socket on a loopback address; -1 with errno. */
static int listen_on(const union address *address, socklen_t size) {
  int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int one = 1;
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (address->any.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
  if (bind(fd, &address->any, size) == 0 && listen(fd, BACKLOG) == 0) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

void port_listen(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  uint16_t port = take_u16(&reader);
  if (port == 0) {
    channel_respond_error(&agent->channel, request->stream, STATUS_INVALID, EINVAL, "port 0");
    return;
  }
  if (agent->ports.listeners >= MAX_LISTENERS) {
    channel_respond_error(&agent->channel, request->stream, STATUS_LIMIT, 0, "too many listeners");
    return;
  }
  union address v4 = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
  v4.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  union address v6 = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT}};
  int fd4 = listen_on(&v4, sizeof v4.v4);
  if (fd4 < 0) {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(errno), errno, strerror(errno));
    return;
  }
  struct listener *listener = must_alloc(sizeof *listener);
  listener->agent = agent;
  listener->v4 = (struct source){.fd = fd4, .ready = accept_v4};
  /* A guest without IPv6 has only the other one. */
  listener->v6 = (struct source){.fd = listen_on(&v6, sizeof v6.v6), .ready = accept_v6};
  agent->ports.listeners++;
  streams_add(&agent->streams, &listener->stream, request->stream, &listener_ops);
  channel_respond_ok(&agent->channel, request->stream);
  loop_watch(&agent->loop, &listener->v4, EPOLLIN);
  loop_watch(&agent->loop, &listener->v6, EPOLLIN);
}
