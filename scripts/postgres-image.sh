#!/usr/bin/env bash
# Builds a Postgres image out of the server packages that this machine has installed, for machines that
# reach no image registry. It keeps the parts of the official image's contract that tests rely on:
# POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB, arguments for the server, SIGINT as a fast shutdown,
# and "ready to accept connections" on stderr only from the server that stays.
#
# usage: scripts/postgres-image.sh NAME:TAG      needs: Docker, Debian's postgresql-NN
set -euo pipefail

image=${1:?usage: postgres-image.sh NAME:TAG}
bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
[[ -n $bin ]] || { echo "no server in /usr/lib/postgresql: install postgresql-NN" >&2; exit 1; }
version=$(basename "$(dirname "$bin")")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# The tree: programs, the server's modules (less the JIT, whose library is larger than all the rest),
# every shared library they name, the server's own data, time zones.
mkdir -p "$tree"/usr/{bin,lib,lib64} "$tree"/{etc,tmp,run,var/lib/postgresql}
chmod 1777 "$tree/tmp" "$tree/run"
for dir in bin lib lib64; do ln -s "usr/$dir" "$tree/$dir"; done
programs=("$bin"/{postgres,initdb,pg_ctl,pg_isready,psql,pg_dump})
for name in dash cat chown head id mkdir rm setpriv; do programs+=("$(command -v "$name")"); done
mapfile -t modules < <(find "/usr/lib/postgresql/$version/lib" -name '*.so' ! -name 'llvmjit*')
mapfile -t libraries < <(ldd "${programs[@]}" "${modules[@]}" |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }' | sort -u)
cp --dereference --parents "${programs[@]}" "${modules[@]}" "${libraries[@]}" "$tree"
cp --dereference --recursive --parents "/usr/share/postgresql/$version" /usr/share/zoneinfo /usr/lib/locale/C.utf8 "$tree"
ln -sf dash "$tree/usr/bin/sh"
echo 'root:x:0:0::/:/bin/sh
postgres:x:70:70::/var/lib/postgresql:/bin/sh' >"$tree/etc/passwd"
echo 'root:x:0:
postgres:x:70:' >"$tree/etc/group"

cat >"$tree/entrypoint" <<'SH'
#!/bin/sh
set -eu
if [ "${1:-postgres}" != postgres ] && [ "${1#-}" = "$1" ]; then exec "$@"; fi
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" && chown postgres:postgres "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --clear-groups /entrypoint "$@"
fi
[ "${1:-}" != postgres ] || shift
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?must be set}"
    (umask 077 && echo "$POSTGRES_PASSWORD" >/tmp/password)
    initdb --username="$user" --pwfile=/tmp/password --auth-local=trust \
        --encoding=UTF8 --locale=C.UTF-8 --no-sync
    rm /tmp/password
    echo "host all all all ${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >"$PGDATA/pg_hba.conf"; echo 'local all all trust' >>"$PGDATA/pg_hba.conf"
    # Reachable from inside only, and its log on stdout.
    pg_ctl -w start -o "-c listen_addresses= -c unix_socket_directories=/tmp -c fsync=off"
    [ "$database" = postgres ] || echo 'CREATE DATABASE :"name"' |
        psql --host=/tmp --username="$user" --dbname=postgres --set=name="$database" --set=ON_ERROR_STOP=1 --quiet
    pg_ctl -w -m fast stop
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
SH
chmod 755 "$tree/entrypoint"

tar --create --directory="$tree" --owner=0 --group=0 --numeric-owner . | docker import \
    --change "ENV PATH=$bin:/usr/bin" --change 'ENV PGDATA=/var/lib/postgresql/data' --change 'ENV LANG=C.UTF-8' \
    --change 'EXPOSE 5432' --change 'ENTRYPOINT ["/entrypoint"]' --change 'CMD ["postgres"]' - "$image" >/dev/null
docker image ls "$image"
