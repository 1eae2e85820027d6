#!/bin/sh
# The diagnosis before Node.js 26 is installed: what set-up itself needs. ./aenv doctor runs it.
set -u
failed=0

# report STATE NAME DETAIL [REMEDY]
report() {
  printf '%-8s %-16s %s\n' "$1" "$2" "$3"
  if [ -n "${4-}" ]; then printf '%-8s %-16s -> %s\n' '' '' "$4"; fi
  if [ "$1" = missing ]; then failed=1; fi
}

if [ -r /etc/os-release ] && grep -q '^ID=debian$' /etc/os-release; then
  report ok system "$(sed -n 's/^PRETTY_NAME="\(.*\)"$/\1/p' /etc/os-release), $(uname -m)"
else
  report warning system "not Debian, $(uname -m)" 'install what ./aenv setup names by hand'
fi
for program in npm git flock; do
  if command -v "$program" >/dev/null 2>&1; then
    report ok "$program" "$(command -v "$program")"
  else
    report missing "$program" 'not installed' 'apt-get install -y npm git'
  fi
done
if [ "$(id -u)" -eq 0 ]; then
  report ok privileges root
elif command -v sudo >/dev/null 2>&1; then
  report warning privileges "uid $(id -u); set-up and the server ask sudo"
else
  report missing privileges "uid $(id -u) and no sudo" 'run ./aenv as root'
fi
if [ -c /dev/net/tun ]; then
  report ok 'tap devices' /dev/net/tun
else
  report missing 'tap devices' '/dev/net/tun is not there' 'modprobe tun, as root'
fi
if [ -w /dev/kvm ]; then
  report ok KVM /dev/kvm
else
  report warning KVM '/dev/kvm is not usable: microVMs are emulated, several times slower'
fi
report ok memory "$(awk '/^MemTotal/ { total = $2 } /^MemAvailable/ { free = $2 } END { printf "%.1f GiB in all, %.1f GiB free", total / 1048576, free / 1048576 }' /proc/meminfo)"
report missing set-up 'Node.js 26 is not installed; the other checks run on it' './aenv setup'
exit "$failed"
