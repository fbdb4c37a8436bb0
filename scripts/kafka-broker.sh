#!/usr/bin/env bash
# One real Apache Kafka node (KRaft, broker and controller in one) on loopback, for tests. Needs Java 17 and Maven.
#
#   kafka-broker.sh fetch               get the jars, once; start does it too
#   kafka-broker.sh start DIR [PORT]    start and wait until it serves; prints the address. Again on the same DIR:
#                                       restart with its data on its port. PORT defaults to a free one.
#   kafka-broker.sh stop DIR            end it in good order
#   kafka-broker.sh kill DIR            end it as a crash would
#   kafka-broker.sh pause DIR | resume DIR
#   kafka-broker.sh remove DIR          kill it and delete DIR
#
# Environment:
#   OUTBOX_KAFKA_LIBS        where the jars are kept       (target/kafka/libs)
#   OUTBOX_KAFKA_VERSION     which version to fetch        (the one in kafka/pom.xml)
#   OUTBOX_KAFKA_OWNER       a process id: when it is gone, the broker is killed and DIR deleted
#   OUTBOX_KAFKA_ADVERTISED  the port told to clients, when a proxy stands in between (PORT)
#   OUTBOX_KAFKA_PROPERTIES  a file of further broker properties; they win
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
libs=${OUTBOX_KAFKA_LIBS:-${CARGO_TARGET_DIR:-$here/../target}/kafka/libs}

kafka() {
  exec java -Xms128m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    "-Dlog4j2.configurationFile=$here/kafka/log4j2.properties" -cp "$libs/*" "$@"
}

fetch() {
  mkdir -p "$(dirname "$libs")"
  # Several tests may start at once: one fetches, the others wait. The folder appears whole or not at all.
  (
    flock 9
    [ -d "$libs" ] && exit 0
    rm -rf "$libs.part"
    mvn -B -q -f "$here/kafka/pom.xml" ${OUTBOX_KAFKA_VERSION:+-Dkafka.version=$OUTBOX_KAFKA_VERSION} \
      dependency:copy-dependencies -DoutputDirectory="$libs.part" -DincludeScope=runtime >&2
    mv "$libs.part" "$libs"
  ) 9>"$libs.lock"
}

free_port() {
  # Below the range from which the kernel draws ports for outgoing connections, so that nobody takes it during a restart.
  local port
  while :; do
    port=$((15000 + RANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$((port + 5000))") 2>/dev/null || break
  done
  echo "$port"
}

properties() {
  local dir=$1 port=$2
  cat <<PROPERTIES
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 5000))
advertised.listeners=PLAINTEXT://127.0.0.1:${OUTBOX_KAFKA_ADVERTISED:-$port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 5000))
log.dirs=$dir/data
# One node: what Kafka keeps for itself cannot have three copies.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
default.replication.factor=1
min.insync.replicas=1
# A test names its topics; one made by a typing error would hide it.
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=10485760
PROPERTIES
  [ -z "${OUTBOX_KAFKA_PROPERTIES:-}" ] || cat "$OUTBOX_KAFKA_PROPERTIES"
}

alive() { kill -0 "$(cat "$1/pid" 2>/dev/null || echo none)" 2>/dev/null; }

# Waits up to $2 tenths of a second for the process to be gone.
gone() {
  local _
  for _ in $(seq "$2"); do
    alive "$1" || return 0
    sleep 0.1
  done
  return 1
}

# When the owner is gone, so is the broker: a killed test leaves nothing behind.
watch_owner() {
  local dir=$1
  [ -n "${OUTBOX_KAFKA_OWNER:-}" ] && [ ! -e "$dir/watched" ] || return 0
  touch "$dir/watched"
  (
    exec >/dev/null 2>&1 </dev/null 9>&-
    while kill -0 "$OUTBOX_KAFKA_OWNER"; do sleep 0.5; done
    kill -9 "$(cat "$dir/pid")" || true
    rm -rf "$dir"
  ) &
}

start() {
  local dir=$1 port log
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  if alive "$dir"; then
    echo "a broker already runs in $dir" >&2
    exit 1
  fi
  fetch
  port=${2:-$(cat "$dir/port" 2>/dev/null || free_port)}
  echo "$port" >"$dir/port"
  if [ ! -f "$dir/data/meta.properties" ]; then
    properties "$dir" "$port" >"$dir/server.properties"
    # With "=": one id of 64 begins with "-", and would be taken for an option.
    (kafka kafka.tools.StorageTool format --standalone -c "$dir/server.properties" \
      --cluster-id="$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d =)") >"$dir/format.log" 2>&1 ||
      { tail -20 "$dir/format.log" >&2; exit 1; }
  fi
  log=$dir/server.log
  : >"$log"
  (kafka kafka.Kafka "$dir/server.properties") >"$log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
  watch_owner "$dir"
  for _ in $(seq 600); do
    if grep -q 'Kafka Server started' "$log"; then
      echo "127.0.0.1:${OUTBOX_KAFKA_ADVERTISED:-$port}"
      return 0
    fi
    alive "$dir" || break
    sleep 0.1
  done
  tail -30 "$log" >&2
  exit 1
}

case ${1:-} in
fetch) fetch ;;
start) start "${2:?DIR is missing}" "${3:-}" ;;
stop)
  kill "$(cat "${2:?DIR is missing}/pid")"
  gone "$2" 300 || { echo "the broker in $2 did not stop within 30 s" >&2; exit 1; }
  ;;
kill)
  kill -9 "$(cat "${2:?DIR is missing}/pid")"
  gone "$2" 100
  ;;
pause) kill -STOP "$(cat "${2:?DIR is missing}/pid")" ;;
resume) kill -CONT "$(cat "${2:?DIR is missing}/pid")" ;;
remove)
  ! alive "${2:?DIR is missing}" || kill -9 "$(cat "$2/pid")"
  gone "$2" 100
  rm -rf "$2"
  ;;
*)
  sed -n '2,17s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
