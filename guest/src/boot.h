/* PID 1 of a microVM: from the initramfs to the root file system of the sandbox. */
#ifndef AENV_BOOT_H
#define AENV_BOOT_H

/*
 * Kernel parameters:
 *   aenv.root=/dev/vda     the image, mounted read-only; aenv.fstype=ext4|erofs (ext4)
 *   aenv.upper=/dev/vdb    ext4 for everything written, joined with the image by overlayfs; without it, memory
 *   aenv.ip4=A/N aenv.gw4=G aenv.ip6=A/N aenv.gw6=G   addresses of eth0; without them it stays down
 *   aenv.hostname=NAME     until the first activate (sandbox)
 * /modules/order of the initramfs lists the modules to load, one per line: a path, or a name in /modules. The tree
 * /lib/modules/VERSION of the initramfs appears in the sandbox.
 */

/* Makes the machine a sandbox. Ends by power-off, saying why, when that is impossible. */
void boot(void);
/* Waits for the agent's virtio port and opens it; ends by power-off when there is none. */
int boot_open_port(void);

#endif
