/**
 * Login files of the base image. They start no process at all: every command of the SDK runs in a login shell, and under
 * emulation each fork and exec costs tens of milliseconds. Only builtins here; a test runs them where forking fails.
 */

/** `/etc/profile`, read by every login shell (bash and dash). */
export const ETC_PROFILE = `# System-wide settings of login shells. Starts no process.
export PATH="\${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
export LANG="\${LANG:-C.UTF-8}"
umask 022
for part in /etc/profile.d/*.sh; do
  if [ -r "$part" ]; then . "$part"; fi
done
unset part
`;

/** `/etc/bash.bashrc`, read by interactive shells. */
export const ETC_BASHRC = `# System-wide settings of interactive shells. Starts no process.
[ -z "\${PS1-}" ] && return
shopt -s checkwinsize
`;

/** `~/.profile`, read by login shells after /etc/profile. */
export const HOME_PROFILE = `# Settings of login shells. Starts no process.
if [ -n "\${BASH_VERSION-}" ] && [ -r "$HOME/.bashrc" ]; then . "$HOME/.bashrc"; fi
if [ -d "$HOME/.local/bin" ]; then PATH="$HOME/.local/bin:$PATH"; fi
`;

/** `~/.bashrc`, read by interactive shells. */
export const HOME_BASHRC = `# Settings of interactive shells. Starts no process.
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
shopt -s histappend checkwinsize
PS1='\\[\\e[01;32m\\]\\u@\\h\\[\\e[00m\\]:\\[\\e[01;34m\\]\\w\\[\\e[00m\\]\\$ '
alias ls='ls --color=auto'
alias ll='ls -l'
`;
