# Sourced by .ci/run: an engine in which the tests' Postgres can be reached, or none.
#
# An engine that answers is not enough. It may be one of another network namespace, or its bridge may not carry
# anything; then every test would wait for its own container in vain. So one container is asked first.

dockerd_pid=''
bridge=''

# use_docker IMAGE SCRATCH LOGS: sets DOCKER_HOST and OUTBOX_DEV_DOCKER_NETWORK as needed; fails if nothing answers.
use_docker() {
    local image=$1 scratch=$2 logs=$3
    if docker info >/dev/null 2>&1; then
        scripts/postgres-image.sh "$image" && docker_answers "$image" bridge && return
        docker image rm "$image" >/dev/null 2>&1 || true
    fi
    start_own_engine "$scratch" "$logs" || return
    scripts/postgres-image.sh "$image" || return
    docker_answers "$image" bridge && return
    docker_answers "$image" host && export OUTBOX_DEV_DOCKER_NETWORK=host
}

# With everything of its own: whatever state another engine left on this machine is not its business.
start_own_engine() {
    local scratch=$1 logs=$2 tries=0 flags=(--data-root "$1/docker/data" --exec-root "$1/docker/run")
    mkdir -p "$scratch/docker"
    export DOCKER_HOST=unix://$scratch/docker/engine.sock
    bridge=outbox-ci0
    ip link delete "$bridge" 2>/dev/null || true
    if ip link add "$bridge" type bridge && ip address add 10.213.77.1/24 dev "$bridge" && ip link set "$bridge" up; then
        flags+=(--bridge "$bridge")
    else
        echo 'no bridge can be made: containers get the network of the host'
        bridge=''
        flags+=(--bridge none --iptables=false)
    fi
    setsid dockerd "${flags[@]}" --pidfile "$scratch/docker/pid" --host "$DOCKER_HOST" >"$logs/dockerd.log" 2>&1 &
    dockerd_pid=$!
    until docker info >/dev/null 2>&1; do
        [[ $((tries += 1)) -lt 120 ]] || { tail -n 20 "$logs/dockerd.log"; return 1; }
        sleep 0.5
    done
}

# docker_answers IMAGE bridge|host: whether a server in a container can be spoken to, in the way in which tests do it.
docker_answers() {
    local image=$1 network=$2 port=$((20000 + RANDOM % 10000)) name=outbox-ci-probe-$$ tries=0 answers=no
    local flags=(--publish "127.0.0.1:$port:5432") arguments=()
    [[ $network == bridge ]] || flags=(--network host) arguments=(postgres -c "port=$port" -c listen_addresses=127.0.0.1)
    docker run --detach --name "$name" --env POSTGRES_PASSWORD=probe "${flags[@]}" "$image" "${arguments[@]}" >/dev/null || return
    while [[ $answers == no && $((tries += 1)) -le 60 ]]; do
        if PGPASSWORD=probe PGCONNECT_TIMEOUT=2 psql -qAt -h 127.0.0.1 -p "$port" -U postgres -c 'SELECT' >/dev/null 2>&1; then
            answers=yes
        else
            sleep 0.5
        fi
    done
    if [[ $answers == no ]]; then
        echo "a container's server cannot be reached (network: $network); its last lines:"
        docker logs --tail 5 "$name" 2>&1 || true
        docker port "$name" 2>&1 || true
    fi
    docker rm --force --volumes "$name" >/dev/null
    [[ $answers == yes ]]
}

stop_own_engine() {
    [[ -z $dockerd_pid ]] || { kill "$dockerd_pid" && wait "$dockerd_pid"; } 2>/dev/null || true
    [[ -z $bridge ]] || ip link delete "$bridge" 2>/dev/null || true
    # The engine mounts its folder on itself, and leaves that if it was killed.
    [[ ! -d $1/docker/data ]] || umount "$1/docker/data" 2>/dev/null || true
}
