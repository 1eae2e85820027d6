/* The end of a machine whose PID 1 is the agent. */
#ifndef AENV_SHUTDOWN_H
#define AENV_SHUTDOWN_H

#include <stdbool.h>

/* As PID 1, on one of its signals: ends every process, writes back, and powers off or reboots. */
__attribute__((noreturn)) void shutdown_now(int signal);
/* The program called as poweroff, reboot, halt or shutdown: tells PID 1. The exit status. */
int shutdown_command(const char *name, char **arguments);
bool shutdown_is_command(const char *name);

#endif
