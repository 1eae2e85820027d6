/* The four streams of a process: its control stream, stdin, stdout (or the terminal) and stderr. */
#include "agent.h"
#include "process.h"
#include "protocol.gen.h"
#include "util.h"

/* Ids next to the request's own. */
#define STDIN_OFFSET 1u
#define STDOUT_OFFSET 2u
#define STDERR_OFFSET 3u

static void control_reset(struct stream *stream) {
  struct process *process = container_of(stream, struct process, control);
  if (process->state == PROCESS_STARTING) {
    process_abandon(process);
  } else {
    helper_kill(&process->helper);
  }
}

static void control_upheaval(struct stream *stream, int what) {
  struct process *process = container_of(stream, struct process, control);
  if (process->state == PROCESS_STARTING && what != UPHEAVAL_ZERO_CREDIT) process_abandon(process);
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
  process_forget_if_over(process);
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

void process_open_streams(struct process *process) {
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

void process_end_streams(struct process *process) {
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
