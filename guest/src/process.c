#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
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

/* Bytes a process may be ahead of the host. More than the usual 64 KiB: each time it runs full costs a switch of processes. */
#define OUTPUT_PIPE (256 * 1024)

#define REASON_DEADLINE 1u

static void process_free(struct process *process) {
  process_end_streams(process);
  struct processes *processes = &process->agent->processes;
  *(process->previous != NULL ? &process->previous->next : &processes->first) = process->next;
  *(process->next != NULL ? &process->next->previous : &processes->last) = process->previous;
  processes->count--;
  processes->noted -= process->tag_length + process->config_length;
  free(process->tag);
  free(process->config);
  free(process->failure_message);
  free(process);
}

void process_forget_if_over(struct process *process) {
  if (process->state != PROCESS_EXITED || process->remembered) return;
  if (process->out_stream.ops == NULL && process->err_stream.ops == NULL) process_free(process);
}

static void forget_due(struct timer *timer) {
  struct process *process = container_of(timer, struct process, forget);
  process->remembered = false;
  process_forget_if_over(process);
}

void process_abandon(struct process *process) {
  helper_kill(&process->helper);
  process_end_streams(process);
  process->state = PROCESS_ABANDONED;
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
  process_abandon(process);
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
  process_abandon(process);
}

/* --- spawn ------------------------------------------------------------------------------------------------------ */

/* Room for one more; exits remembered longest go first. */
static bool make_room(struct agent *agent, size_t noted) {
  struct processes *processes = &agent->processes;
  while (processes->count >= MAX_PROCESSES || processes->noted + noted > MAX_NOTED) {
    struct process *oldest = processes->first;
    while (oldest != NULL && oldest->state != PROCESS_EXITED) oldest = oldest->next;
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
    if (i > 0) fcntl(process->ends[i], F_SETPIPE_SZ, OUTPUT_PIPE);
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
  process->previous = agent->processes.last;
  *(process->previous != NULL ? &process->previous->next : &agent->processes.first) = process;
  agent->processes.last = process;
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
  process_open_streams(process);
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

