#!/usr/bin/env bash
# Builds a Kafka image out of the broker's Maven artifacts and the Java that this machine has installed, for machines
# that reach no image registry. Like the official image it is configured by KAFKA_* variables (KAFKA_NODE_ID becomes
# node.id), formats its storage at the first start, and logs to stdout. One node.
#
# usage: scripts/kafka-image.sh NAME:TAG      needs: Docker, Java 17, Maven
set -euo pipefail

image=${1:?usage: kafka-image.sh NAME:TAG}
here=$(cd "$(dirname "$0")" && pwd)
"$here/kafka-broker.sh" fetch
libs=${OUTBOX_KAFKA_LIBS:-${CARGO_TARGET_DIR:-$here/../target}/kafka/libs}
java=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# The tree: what runs a class, less what only compiles and debugs; every shared library that it names; the jars.
mkdir -p "$tree"/usr/{bin,lib,lib64} "$tree"/{etc,tmp,var/lib/kafka,opt/kafka}
chmod 1777 "$tree/tmp"
for dir in bin lib lib64; do ln -s "usr/$dir" "$tree/$dir"; done
programs=(/bin/dash /usr/bin/{env,head,base64,tr,sed})
mapfile -t modules < <(find "$java/lib" -name '*.so' ! -name 'lib*awt*' ! -name 'libsplashscreen.so')
mapfile -t libraries < <({ printf '%s\n' "${modules[@]}"; ldd "$java/bin/java" "${programs[@]}" "${modules[@]}" |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }'; } | xargs realpath -s | sort -u)
cp --dereference --parents "$java/bin/java" "${programs[@]}" "${libraries[@]}" "$tree"
cp --dereference --recursive --parents "$java"/lib/{modules,jvm.cfg,server,security,tzdb.dat} "$java"/conf "$tree"
ln -s "$java/bin/java" "$tree/usr/bin/java"
ln -sf dash "$tree/usr/bin/sh"
cp -r "$libs" "$tree/opt/kafka/libs"
cp "$here/kafka/log4j2.properties" "$tree/opt/kafka/"
echo 'root:x:0:0::/:/bin/sh
kafka:x:1000:1000::/var/lib/kafka:/bin/sh' >"$tree/etc/passwd"
echo 'hosts: files dns' >"$tree/etc/nsswitch.conf"

cat >"$tree/entrypoint" <<'SH'
#!/bin/sh
set -eu
options='-Xms128m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=/opt/kafka/log4j2.properties'
data=/var/lib/kafka/data
properties=/tmp/server.properties
# KAFKA_NODE_ID=1 becomes node.id=1.
{
    echo "log.dirs=$data"
    env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
        echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
    done
} >$properties
if [ ! -e $data/meta.properties ]; then
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d =)
    java $options -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format -c $properties --cluster-id="$id" >/dev/null
fi
exec java $options -cp '/opt/kafka/libs/*' kafka.Kafka $properties
SH
chmod 755 "$tree/entrypoint"

tar --create --directory="$tree" --owner=0 --group=0 --numeric-owner . | docker import \
    --change 'ENV PATH=/usr/bin' --change 'ENV LANG=C.UTF-8' --change 'EXPOSE 9092' \
    --change 'ENTRYPOINT ["/entrypoint"]' - "$image" >/dev/null
docker image ls "$image"
