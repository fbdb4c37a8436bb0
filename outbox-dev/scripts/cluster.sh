# Owns one throw-away cluster: makes it, obeys the lines it reads, and removes it when its input ends.
# The input is a pipe from the owner; it closes with the owner however that one dies.
#
# usage: sh -c "$(cat cluster.sh)" cluster BIN DIR
# lines: init | start | stop fast | stop immediate | kill | keep (remove nothing at the end)
# answers: ok | failed
#
# Signals are ignored, not handled: a Ctrl-C is for the owner, whose end is then seen here.
# Nor may the answer to an owner who is gone end this process before it has cleaned up: PIPE.
trap '' INT TERM HUP PIPE
bin=$1 dir=$2 data=$2/data log=$2/control.log keep=no

start() {
    # After SIGKILL of the server its last backends need a moment to notice; until then a start is refused.
    tries=0
    until "$bin/pg_ctl" -D "$data" -l "$dir/server.log" -w -t 60 start; do
        tries=$((tries + 1))
        [ -e "$data/postmaster.pid" ] && [ "$tries" -lt 50 ] || return 1
        sleep 0.2
    done
}

obey() {
    case $1 in
    init) "$bin/initdb" -D "$data" -U postgres --pwfile="$dir/password" -A password -E UTF8 --locale=C --no-sync &&
        rm "$dir/password" && cat "$dir/settings" >>"$data/postgresql.conf" ;;
    start) start ;;
    stop) "$bin/pg_ctl" -D "$data" -m "$2" -w stop ;;
    kill) "$bin/pg_ctl" kill KILL "$(head -n 1 "$data/postmaster.pid")" ;;
    keep) keep=yes ;;
    *) false ;;
    esac
}

while read -r verb mode; do
    if obey "$verb" "$mode" >>"$log" 2>&1 </dev/null; then echo ok; else echo failed; fi
done

[ "$keep" = no ] || exit 0
if [ -e "$data/postmaster.pid" ]; then
    # The seventh line names the server's shared memory, which outlives a SIGKILL.
    shared_memory=$(sed -n '7s/.* //p' "$data/postmaster.pid")
    "$bin/pg_ctl" -D "$data" -m immediate -w stop || ipcrm -m "$shared_memory"
fi >>"$log" 2>&1 </dev/null
cd / && rm -rf "$dir"
