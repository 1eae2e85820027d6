/* What can be asked about processes that were spawned: signal, resize, list-processes. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>

#include "agent.h"
#include "body.h"
#include "dispatch.h"
#include "process.h"
#include "protocol.gen.h"
#include "util.h"

static struct process *find(const struct agent *agent, uint32_t id) {
  struct process *process = agent->processes.first;
  while (process != NULL && (process->id != id || process->state == PROCESS_ABANDONED)) process = process->next;
  return process;
}

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

/* The flags of the spawn, and which outputs are over. */
static uint32_t flags_of(const struct process *process) {
  return (process->flags & (SPAWN_PTY | SPAWN_STDIN)) | (process->out_stream.ops == NULL ? STDOUT_ENDED : 0) |
         (process->err_stream.ops == NULL ? STDERR_ENDED : 0);
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
    put_u32(body, flags_of(process));
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
