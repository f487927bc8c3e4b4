#!/bin/bash
# First start: make the cluster as POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB say. Every start: run the server.
# Arguments are passed on to it, as with the official image ("postgres -c fsync=off" or just "-c fsync=off").
set -euo pipefail

user="${POSTGRES_USER:-postgres}"
database="${POSTGRES_DB:-$user}"
if [[ "${1:-}" == postgres ]]; then shift; fi

as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

mkdir -p "$PGDATA" /var/run/postgresql
chown -R postgres:postgres "$PGDATA" /var/run/postgresql
chmod 0700 "$PGDATA"

if [[ ! -s "$PGDATA/PG_VERSION" ]]; then
  if [[ -z "${POSTGRES_PASSWORD:-}" ]]; then
    echo "POSTGRES_PASSWORD must be set" >&2
    exit 1
  fi
  # A file rather than a pipe: initdb runs as another user and reads it by name.
  password_file="$(mktemp)"
  chown postgres "$password_file"
  printf '%s\n' "$POSTGRES_PASSWORD" >"$password_file"
  as_postgres initdb --pgdata="$PGDATA" --username="$user" --pwfile="$password_file" \
    --auth-host=scram-sha-256 --auth-local=trust --encoding=UTF8 --locale=C >/dev/null
  rm -f "$password_file"
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  echo "host replication all all scram-sha-256" >>"$PGDATA/pg_hba.conf"

  # Only the local socket while the database is made: nobody can connect to a server that is about to stop again.
  as_postgres pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=''" start >/dev/null
  if [[ "$database" != postgres ]]; then
    as_postgres createdb --username="$user" --maintenance-db=postgres "$database"
  fi
  as_postgres pg_ctl -D "$PGDATA" -m fast -w stop >/dev/null
  echo "PostgreSQL init process complete; ready for start up."
fi

exec setpriv --reuid=postgres --regid=postgres --init-groups postgres -c "listen_addresses=*" "$@"
