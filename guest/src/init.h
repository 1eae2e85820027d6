/* PID 1 of a microVM: from the initramfs to the guest environment. */
#ifndef AENV_INIT_H
#define AENV_INIT_H

/* Makes the machine a sandbox (file systems, names, network, limits). Ends by power-off when that is impossible. */
void init_become_environment(void);
/* Waits for the agent's virtio port and opens it; ends by power-off when there is none. */
int init_open_port(void);

#endif
