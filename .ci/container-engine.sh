#!/usr/bin/env bash
# Sees to it that a Docker engine answers on this machine, for the container lane of the tests.
#
# Standard output carries one thing only: the pid of the dockerd that this script started, so that the caller can
# stop it at the end (`kill "$pid"`). It stays empty when an engine answered already: that one is not ours to stop.
# Everything said to people goes to standard error.
set -euo pipefail

say() { printf 'container-engine: %s\n' "$*" >&2; }

engine_answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# Asked of the socket too: a docker client much newer than the daemon refuses its API and would look like "no engine".
socket_answers() { curl --silent --fail --max-time 3 --unix-socket /var/run/docker.sock http://docker/_ping >/dev/null 2>&1; }

install_packages() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v iptables >/dev/null || missing+=(iptables)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  command -v curl >/dev/null || missing+=(curl)
  if ((${#missing[@]} == 0)); then return; fi
  if ! command -v apt-get >/dev/null; then
    say "needs ${missing[*]}, and there is no apt-get here; install a Docker engine by hand"
    exit 1
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Fresh images carry no package lists and old ones name versions that have left the mirror. Refreshing costs ten
  # seconds, so only when the install fails without it.
  if ! apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1; then
    apt-get update >&2
    apt-get install -y --no-install-recommends "${missing[@]}" >&2
  fi
}

if engine_answers || socket_answers; then
  say "an engine answers already"
  exit 0
fi
if [[ $EUID -ne 0 ]]; then
  say "no engine answers, and starting one takes root"
  exit 1
fi

install_packages

# A dockerd killed hard leaves its pid file, and the next one refuses to start if any process has that number.
if [[ -f /var/run/docker.pid ]] && ! grep -q dockerd "/proc/$(cat /var/run/docker.pid)/comm" 2>/dev/null; then
  rm -f /var/run/docker.pid
fi

log="$(mktemp -t capstan-dockerd.XXXXXX.log)"
# setsid: Ctrl-C in the caller's terminal must not take the engine down under tests that are still cleaning up.
setsid dockerd >"$log" 2>&1 </dev/null &
pid=$!

for _ in $(seq 1 120); do
  if socket_answers; then
    say "dockerd $pid answers (log: $log)"
    printf '%s\n' "$pid"
    exit 0
  fi
  if ! kill -0 "$pid" 2>/dev/null; then break; fi
  sleep 0.5
done
say "dockerd did not come up; the end of its log ($log):"
tail -n 20 "$log" >&2
kill "$pid" 2>/dev/null || true
exit 1
