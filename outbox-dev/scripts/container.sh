# Removes one container when its input ends. The input is a pipe from the owner; it closes with the owner
# however that one dies. "up" says that the container exists; before it, the creation may be under way.
#
# usage: sh -c "$(cat container.sh)" container NAME      lines: up | keep (remove nothing)      answer: ok
# Nor may the answer to an owner who is gone end this process before it has cleaned up: PIPE.
trap '' INT TERM HUP PIPE
tries=40
while read -r verb; do
    case $verb in
    up) tries=1 ;;
    keep) tries=0 ;;
    esac
    echo ok
done

remove() {
    if command -v docker; then
        # Newer clients call it a success when there is no such container.
        docker container inspect "$1" && docker rm -f -v "$1"
    else
        socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
        curl -fsS --unix-socket "${socket#unix://}" -X DELETE "http://docker/containers/$1?force=1&v=1"
    fi
}
while [ "$tries" -gt 0 ]; do
    remove "$1" >/dev/null 2>&1 && exit 0
    tries=$((tries - 1))
    sleep 0.25
done
