#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "protocol.gen.h"
#include "spawn.h"
#include "terminal.h"
#include "util.h"

#define MAX_PROCESSES 1024u
/* Tags and configs together, bytes: the rest of a `list-processes` answer is what 1024 entries need. */
#define MAX_NOTED (960u * 1024)
#define REMEMBER_NS (30 * NS_PER_S)

/* Ids next to the request's own. */
#define STDIN_OFFSET 1u
#define STDOUT_OFFSET 2u
#define STDERR_OFFSET 3u

#define REASON_ENDED 0u
#define REASON_DEADLINE 1u

enum process_state {
  PROCESS_STARTING, /* forked, exec not confirmed */
  PROCESS_RUNNING,
  PROCESS_EXITED,
  PROCESS_ABANDONED, /* nobody is told any more; waits to be reaped */
};

struct process {
  struct agent *agent;
  struct process *next;
  struct helper helper;
  enum process_state state;
  uint32_t id;
  pid_t pid;
  uint32_t uid;
  uint32_t gid;
  uint32_t flags;
  uint8_t *tag;
  uint32_t tag_length;
  uint8_t *config;
  uint32_t config_length;
  bool identified;  /* uid and gid are known */
  uint32_t failure; /* status; what kept it from starting */
  int failure_errno;
  char *failure_message;
  struct stream control;
  struct stream in_stream;
  struct stream out_stream;
  struct stream err_stream;
  struct inflow in;
  struct outflow out;
  struct outflow err;
  int ends[3]; /* the agent's ends of stdin, stdout and stderr until the flows take them */
  struct timer start_deadline;
  struct timer kill_deadline;
  struct timer forget;
  bool remembered; /* the 30 s are not over */
  int32_t exit_code;
  uint32_t exit_signal;
  uint32_t exit_reason;
};

static struct process *find(const struct agent *agent, uint32_t id) {
  struct process *process = agent->processes.first;
  while (process != NULL && (process->id != id || process->state == PROCESS_ABANDONED)) process = process->next;
  return process;
}

static void end_streams(struct process *process) {
  struct streams *streams = &process->agent->streams;
  streams_remove(streams, &process->control);
  streams_remove(streams, &process->in_stream);
  streams_remove(streams, &process->out_stream);
  streams_remove(streams, &process->err_stream);
  inflow_stop(&process->in);
  outflow_stop(&process->out);
  outflow_stop(&process->err);
  for (int i = 0; i < 3; i++) close_fd(&process->ends[i]);
  loop_disarm(&process->agent->loop, &process->start_deadline);
  loop_disarm(&process->agent->loop, &process->kill_deadline);
  loop_disarm(&process->agent->loop, &process->forget);
}

static void process_free(struct process *process) {
  end_streams(process);
  struct processes *processes = &process->agent->processes;
  struct process **at = &processes->first;
  while (*at != process) at = &(*at)->next;
  *at = process->next;
  processes->count--;
  processes->noted -= process->tag_length + process->config_length;
  free(process->tag);
  free(process->config);
  free(process->failure_message);
  free(process);
}

/* Its exit is forgotten when the time is over and no stream of it is left: until then a new connection must be able to
 * find the streams, or whatever holds them open would wait for credit for ever. */
static void forget_if_over(struct process *process) {
  if (process->state != PROCESS_EXITED || process->remembered) return;
  if (process->out_stream.ops == NULL && process->err_stream.ops == NULL) process_free(process);
}

static void forget_due(struct timer *timer) {
  struct process *process = container_of(timer, struct process, forget);
  process->remembered = false;
  forget_if_over(process);
}

/* Ends a spawn that was not answered yet. */
static void abandon(struct process *process) {
  helper_kill(&process->helper);
  end_streams(process);
  process->state = PROCESS_ABANDONED;
}

/* --- streams ---------------------------------------------------------------------------------------------------- */

static void control_reset(struct stream *stream) {
  struct process *process = container_of(stream, struct process, control);
  if (process->state == PROCESS_STARTING) {
    abandon(process);
  } else {
    helper_kill(&process->helper);
  }
}

static void control_upheaval(struct stream *stream, int what) {
  struct process *process = container_of(stream, struct process, control);
  if (process->state == PROCESS_STARTING && what != UPHEAVAL_ZERO_CREDIT) abandon(process);
}

static const struct stream_ops control_ops = {.reset = control_reset, .upheaval = control_upheaval};

static void close_stdin(struct process *process) {
  streams_remove(&process->agent->streams, &process->in_stream);
  inflow_stop(&process->in);
}

static bool in_data(struct stream *stream, const uint8_t *data, size_t length) {
  return inflow_push(&container_of(stream, struct process, in_stream)->in, data, length);
}

static void in_eof(struct stream *stream) {
  struct process *process = container_of(stream, struct process, in_stream);
  if ((process->flags & SPAWN_PTY) == 0) inflow_end(&process->in);
}

static void in_reset(struct stream *stream) { close_stdin(container_of(stream, struct process, in_stream)); }

static void in_upheaval(struct stream *stream, int what) {
  if (what == UPHEAVAL_RESYNC) inflow_restart_window(&container_of(stream, struct process, in_stream)->in);
}

static const struct stream_ops in_ops = {
    .data = in_data,
    .eof = in_eof,
    .reset = in_reset,
    .upheaval = in_upheaval,
};

static void in_drained(struct inflow *flow) { close_stdin(container_of(flow, struct process, in)); }

static void in_failed(struct inflow *flow, int error) {
  (void)error;
  struct process *process = container_of(flow, struct process, in);
  channel_send_u32(&process->agent->channel, flow->stream, FRAME_RESET, STATUS_IO);
  close_stdin(process);
}

static void out_credit(struct stream *stream, uint32_t bytes) {
  outflow_grant(&container_of(stream, struct process, out_stream)->out, bytes);
}

static void err_credit(struct stream *stream, uint32_t bytes) {
  outflow_grant(&container_of(stream, struct process, err_stream)->err, bytes);
}

static void end_output(struct process *process, struct stream *stream, struct outflow *flow) {
  streams_remove(&process->agent->streams, stream);
  outflow_stop(flow);
  forget_if_over(process);
}

static void out_reset(struct stream *stream) {
  struct process *process = container_of(stream, struct process, out_stream);
  end_output(process, stream, &process->out);
}

static void err_reset(struct stream *stream) {
  struct process *process = container_of(stream, struct process, err_stream);
  end_output(process, stream, &process->err);
}

static void out_upheaval(struct stream *stream, int what) {
  (void)what;
  outflow_zero_credit(&container_of(stream, struct process, out_stream)->out);
}

static void err_upheaval(struct stream *stream, int what) {
  (void)what;
  outflow_zero_credit(&container_of(stream, struct process, err_stream)->err);
}

static const struct stream_ops out_ops = {.credit = out_credit, .reset = out_reset, .upheaval = out_upheaval};
static const struct stream_ops err_ops = {.credit = err_credit, .reset = err_reset, .upheaval = err_upheaval};

/* A terminal ends with EIO when its last user is gone; to the host every end of output is an EOF. */
static void output_done(struct outflow *flow, int error) {
  (void)error;
  outflow_finish(flow);
}

static void out_finished(struct outflow *flow) {
  struct process *process = container_of(flow, struct process, out);
  end_output(process, &process->out_stream, flow);
}

static void err_finished(struct outflow *flow) {
  struct process *process = container_of(flow, struct process, err);
  end_output(process, &process->err_stream, flow);
}

static void open_streams(struct process *process) {
  struct agent *agent = process->agent;
  streams_add(&agent->streams, &process->control, process->id, &control_ops);
  inflow_init(&process->in, agent, process->id + STDIN_OFFSET);
  process->in.drained = in_drained;
  process->in.failed = in_failed;
  outflow_init(&process->out, agent, process->id + STDOUT_OFFSET);
  outflow_init(&process->err, agent, process->id + STDERR_OFFSET);
  process->out.done = process->err.done = output_done;
  process->out.finished = out_finished;
  process->err.finished = err_finished;
  if (process->ends[0] >= 0) streams_add(&agent->streams, &process->in_stream, process->in.stream, &in_ops);
  if (process->ends[1] >= 0) streams_add(&agent->streams, &process->out_stream, process->out.stream, &out_ops);
  if (process->ends[2] >= 0) streams_add(&agent->streams, &process->err_stream, process->err.stream, &err_ops);
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static void started(struct process *process) {
  struct agent *agent = process->agent;
  process->state = PROCESS_RUNNING;
  loop_disarm(&agent->loop, &process->start_deadline);
  struct buffer *body = channel_respond(&agent->channel, process->id);
  put_u32(body, (uint32_t)process->pid);
  put_u32(body, process->uid);
  put_u32(body, process->gid);
  channel_end(&agent->channel);
  int ends[3];
  memcpy(ends, process->ends, sizeof ends);
  for (int i = 0; i < 3; i++) process->ends[i] = -1;
  if (ends[1] >= 0) outflow_start(&process->out, ends[1]);
  if (ends[2] >= 0) outflow_start(&process->err, ends[2]);
  if (ends[0] >= 0) inflow_start(&process->in, ends[0]);
}

static void child_message(struct helper *helper, uint8_t kind, const uint8_t *payload, size_t length) {
  struct process *process = container_of(helper, struct process, helper);
  struct reader reader = reader_of(payload, length);
  if (kind == SPAWN_IDENTITY) {
    process->uid = take_u32(&reader);
    process->gid = take_u32(&reader);
    process->identified = true;
  } else if (kind == SPAWN_FAILURE && process->failure == STATUS_OK) {
    process->failure = take_u32(&reader);
    process->failure_errno = (int)take_u32(&reader);
    process->failure_message = take_string(&reader);
  }
}

/* The exec closed the child's end: it runs. Or the child said why not. */
static void child_closed(struct helper *helper) {
  struct process *process = container_of(helper, struct process, helper);
  if (process->state != PROCESS_STARTING) return;
  if (process->failure == STATUS_OK && process->identified) {
    started(process);
    return;
  }
  uint32_t status = process->failure != STATUS_OK ? process->failure : STATUS_EXEC_FAILED;
  const char *message = process->failure != STATUS_OK ? process->failure_message : "killed before it started";
  channel_respond_error(&process->agent->channel, process->id, status, process->failure_errno, message);
  abandon(process);
}

static void child_reaped(struct helper *helper, int status) {
  struct process *process = container_of(helper, struct process, helper);
  struct agent *agent = process->agent;
  if (process->state == PROCESS_ABANDONED) {
    process_free(process);
    return;
  }
  process->state = PROCESS_EXITED;
  process->exit_signal = WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 0;
  process->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  loop_disarm(&agent->loop, &process->kill_deadline);
  struct buffer *body = channel_begin(&agent->channel, process->id, FRAME_EVENT);
  put_u16(body, EVENT_EXIT);
  put_u32(body, (uint32_t)process->exit_code);
  put_u32(body, process->exit_signal);
  put_u32(body, process->exit_reason);
  put_u64(body, process->out.sent + bytes_waiting(process->out.source.fd));
  put_u64(body, process->err.sent + bytes_waiting(process->err.source.fd));
  channel_end(&agent->channel);
  process->remembered = true;
  process->forget.fire = forget_due;
  loop_arm(&agent->loop, &process->forget, monotonic_ns() + REMEMBER_NS);
}

static const struct helper_ops child_ops = {.message = child_message, .closed = child_closed, .reaped = child_reaped};

static void kill_due(struct timer *timer) {
  struct process *process = container_of(timer, struct process, kill_deadline);
  process->exit_reason = REASON_DEADLINE;
  helper_kill(&process->helper);
}

static void start_due(struct timer *timer) {
  struct process *process = container_of(timer, struct process, start_deadline);
  channel_respond_error(&process->agent->channel, process->id, STATUS_DEADLINE, 0, "the program was not started in time");
  abandon(process);
}

/* --- spawn ------------------------------------------------------------------------------------------------------ */

/* Room for one more; exits remembered longest go first. */
static bool make_room(struct agent *agent, size_t noted) {
  struct processes *processes = &agent->processes;
  while (processes->count >= MAX_PROCESSES || processes->noted + noted > MAX_NOTED) {
    struct process *oldest = NULL;
    for (struct process *process = processes->first; process != NULL; process = process->next) {
      if (process->state == PROCESS_EXITED) oldest = process;
    }
    if (oldest == NULL) return false;
    process_free(oldest);
  }
  return true;
}

/* Pipes or a terminal: the agent's ends in `ends`, the child's in `theirs`. */
static bool open_stdio(struct process *process, int theirs[3]) {
  if ((process->flags & SPAWN_PTY) != 0) return terminal_open(process->ends, &theirs[SPAWN_TERMINAL]);
  for (int i = (process->flags & SPAWN_STDIN) != 0 ? 0 : 1; i < 3; i++) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) return false;
    process->ends[i] = pipe_ends[i == 0 ? 1 : 0];
    theirs[i] = pipe_ends[i == 0 ? 0 : 1];
    set_nonblocking(process->ends[i]);
  }
  return true;
}

static void note(const struct span *span, uint8_t **copy, uint32_t *length) {
  *copy = must_alloc(span->length);
  if (span->length > 0) memcpy(*copy, span->data, span->length);
  *length = span->length;
}

static void skip_strings(struct reader *reader) {
  for (uint32_t count = take_u32(reader); count > 0; count--) take_span(reader);
}

void process_spawn(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  take_span(&reader); /* user */
  skip_strings(&reader);
  skip_strings(&reader);
  take_span(&reader); /* cwd */
  take_span(&reader); /* defaultCwd */
  uint32_t flags = take_u32(&reader);
  take_u32(&reader); /* cols, rows */
  struct span tag = take_span(&reader);
  struct span config = take_span(&reader);
  uint64_t kill_after_ms = take_u64(&reader);
  if (!make_room(agent, (size_t)tag.length + config.length)) {
    channel_respond_error(&agent->channel, request->stream, STATUS_LIMIT, 0, "too many processes");
    return;
  }
  struct process *process = must_alloc(sizeof *process);
  process->agent = agent;
  process->id = request->stream;
  process->flags = flags;
  for (int i = 0; i < 3; i++) process->ends[i] = -1;
  note(&tag, &process->tag, &process->tag_length);
  note(&config, &process->config, &process->config_length);
  process->next = agent->processes.first;
  agent->processes.first = process;
  agent->processes.count++;
  agent->processes.noted += tag.length + config.length;

  int theirs[3] = {-1, -1, -1};
  bool ready = open_stdio(process, theirs);
  struct spawn_plan spawn = {
      .body = request->body,
      .length = request->length,
      .die_with_agent = !agent->is_init,
  };
  struct helper_plan plan = {.run = spawn_child, .context = &spawn, .keep = theirs, .keep_count = 3, .user = true};
  open_streams(process);
  ready = ready && helper_start(&process->helper, agent, &child_ops, &plan);
  int error = errno;
  for (int i = 0; i < 3; i++) close_fd(&theirs[i]);
  if (!ready) {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(error), error, "cannot start a process");
    process_free(process);
    return;
  }
  process->pid = process->helper.pid;
  uint64_t now = monotonic_ns();
  process->start_deadline.fire = start_due;
  process->kill_deadline.fire = kill_due;
  if (request->deadline_ms > 0) loop_arm(&agent->loop, &process->start_deadline, now + request->deadline_ms * NS_PER_MS);
  if (kill_after_ms > 0) {
    uint64_t limit = UINT64_MAX / 4 / NS_PER_MS;
    loop_arm(&agent->loop, &process->kill_deadline, now + minimum(kill_after_ms, limit) * NS_PER_MS);
  }
}

/* --- the other operations --------------------------------------------------------------------------------------- */

static struct process *find_running(struct agent *agent, const struct request *request, uint32_t id) {
  struct process *process = find(agent, id);
  if (process != NULL && process->state == PROCESS_RUNNING) return process;
  channel_respond_error(&agent->channel, request->stream, STATUS_NOT_FOUND, ESRCH, "no such process");
  return NULL;
}

static void answer(struct agent *agent, const struct request *request, int result) {
  if (result == 0) {
    channel_respond_ok(&agent->channel, request->stream);
  } else {
    channel_respond_error(&agent->channel, request->stream, status_of_errno(errno), errno, strerror(errno));
  }
}

void process_signal(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  struct process *process = find_running(agent, request, take_u32(&reader));
  uint32_t number = take_u32(&reader);
  if (process == NULL) return;
  if (number == 0 || number > 64) {
    channel_respond_error(&agent->channel, request->stream, STATUS_INVALID, EINVAL, "no such signal");
    return;
  }
  answer(agent, request, kill(process->pid, (int)number));
}

void process_resize(struct agent *agent, const struct request *request) {
  struct reader reader = reader_of(request->body, request->length);
  struct process *process = find_running(agent, request, take_u32(&reader));
  struct winsize size = {0};
  size.ws_col = take_u16(&reader);
  size.ws_row = take_u16(&reader);
  if (process == NULL) return;
  if ((process->flags & SPAWN_PTY) == 0 || process->out.source.fd < 0) {
    channel_respond_error(&agent->channel, request->stream, STATUS_INVALID, ENOTTY, "not a terminal");
    return;
  }
  answer(agent, request, ioctl(process->out.source.fd, TIOCSWINSZ, &size));
}

void process_list(struct agent *agent, const struct request *request) {
  struct buffer *body = channel_respond(&agent->channel, request->stream);
  size_t count_at = buffer_length(body);
  uint32_t count = 0;
  put_u32(body, 0);
  for (struct process *process = agent->processes.first; process != NULL; process = process->next) {
    if (process->state != PROCESS_RUNNING && process->state != PROCESS_EXITED) continue;
    count++;
    put_u32(body, process->id);
    put_u32(body, (uint32_t)process->pid);
    put_bytes(body, process->tag, process->tag_length);
    put_bytes(body, process->config, process->config_length);
    put_u32(body, process->flags);
    put_u8(body, process->in_stream.ops != NULL && !process->in.eof);
    put_u64(body, process->out.sent);
    put_u64(body, process->err.sent);
    put_u8(body, process->state == PROCESS_EXITED);
    put_u32(body, (uint32_t)process->exit_code);
    put_u32(body, process->exit_signal);
  }
  patch_u32(body, count_at, count);
  channel_end(&agent->channel);
}
