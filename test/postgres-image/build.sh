#!/usr/bin/env bash
# Builds the image capstan-postgres:15 from Debian packages, for machines that cannot pull one. Does nothing when the
# image is there. The root file system (75 s, about 400 MB) is kept under CAPSTAN_CACHE_DIR, so that a machine
# whose engine was wiped builds again in seconds. Needs root (debootstrap makes device nodes) and a running engine.
set -euo pipefail

image="${1:-capstan-postgres:15}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${CAPSTAN_CACHE_DIR:-/var/cache/capstan}/postgres-image"

say() { printf 'postgres-image: %s\n' "$*" >&2; }

# The first client that gets along with the engine: one much newer than the daemon refuses its API, and the daemon's own
# package brings another.
docker=""
for candidate in docker /usr/bin/docker; do
  if "$candidate" version >/dev/null 2>&1; then
    docker="$candidate"
    break
  fi
done
if [[ -z "$docker" ]]; then
  say "no container engine answers (see .ci/container-engine.sh)"
  exit 1
fi

if "$docker" image inspect "$image" >/dev/null 2>&1; then
  say "$image is there"
  exit 0
fi
if [[ $EUID -ne 0 ]]; then
  say "building $image takes root"
  exit 1
fi

mkdir -p "$cache"
# Two builds at once would bootstrap twice and race on the tar; the second waits and finds it made.
exec 9>"$cache/lock"
flock 9

if [[ ! -s "$cache/rootfs.tar" ]]; then
  mirror="${CAPSTAN_DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  work="$(mktemp -d -p "$cache" rootfs.XXXXXX)"
  # shellcheck disable=SC2064 # the value of now is the one to remove
  trap "rm -rf --one-file-system '$work'" EXIT
  say "bootstrapping Debian bookworm with Postgres from $mirror (log: $cache/debootstrap.log)"
  if ! debootstrap --variant=minbase --include=postgresql bookworm "$work" "$mirror" >"$cache/debootstrap.log" 2>&1; then
    tail -n 20 "$cache/debootstrap.log" >&2
    exit 1
  fi
  # /usr/lib/locale stays: initdb needs it. The cluster that the Debian package made goes: the entrypoint makes its own.
  rm -rf "$work"/var/cache/apt/* "$work"/var/lib/apt/lists/* "$work"/usr/share/doc/* "$work"/usr/share/man/* \
    "$work"/var/lib/postgresql/15 "$work"/etc/postgresql/15
  # Device nodes and the bootstrapper's mounts are the engine's business.
  tar -C "$work" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf "$cache/rootfs.tar.part" .
  mv "$cache/rootfs.tar.part" "$cache/rootfs.tar"
fi

context="$(mktemp -d -p "$cache" context.XXXXXX)"
cp "$here/Dockerfile" "$here/entrypoint.sh" "$context/"
chmod 0755 "$context/entrypoint.sh"
# A hard link: the tar is 400 MB and the context is sent to the engine anyway.
ln "$cache/rootfs.tar" "$context/rootfs.tar"
say "building $image"
build_status=0
"$docker" build --quiet --tag "$image" "$context" >&2 || build_status=$?
rm -rf "$context"
exit "$build_status"
