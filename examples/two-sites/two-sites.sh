#!/bin/sh
# Two sites on this machine, each a zone with one node in a network of its own, and the link between them, which is cut and
# restored. Needs Linux, iproute2, curl and mosquitto-clients, and root or user namespaces. Nothing is left of it.
# EDGEFAAS names the program if it is not in the PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
edgefaas=$(command -v "${EDGEFAAS:-edgefaas}") || { echo "edgefaas is not in the PATH: set EDGEFAAS" >&2; exit 1; }
edgefaas=$(realpath "$edgefaas")

# Once more, in namespaces of its own: its networks go away with it.
if [ "${TWO_SITES_INSIDE:-}" != yes ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root="--user --map-root-user"
    # shellcheck disable=SC2086
    EDGEFAAS=$edgefaas TWO_SITES_INSIDE=yes exec unshare $as_root --net --mount --pid --fork --kill-child -- "$0"
fi

data=$(mktemp -d)
trap 'trap - EXIT; rm -rf "$data"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mount -t tmpfs none /run
ip netns add north
ip netns add south
ip link add wire netns north type veth peer name wire netns south
number=1
for site in north south; do
    ip -n $site addr add 10.88.0.$number/24 dev wire
    ip -n $site link set lo up
    ip -n $site link set wire up
    number=$((number + 1))
done

at() {
    site=$1
    shift
    ip netns exec "$site" "$@"
}
run() {
    site=$1
    shift
    at "$site" "$edgefaas" --data-dir "$data/$site" "$@"
}
start() {
    run "$1" run --zone "$1" --p2p "$2:7071" >"$data/$1.log" 2>&1 &
    node=$!
    until grep -qs '^ready' "$data/$1.log"; do
        kill -0 "$node" 2>/dev/null || { cat "$data/$1.log" >&2; exit 1; }
        sleep 0.1
    done
}
# Waits until a command succeeds.
wait_for() {
    tries=600
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { echo "this did not succeed within 120 s: $*" >&2; tail "$data"/*.log >&2; exit 1; }
        sleep 0.2
    done
}
ask() { printf '%s: GET %s\n  ' "$1" "$2" && at "$1" curl -sS -m 10 -w ' (%{http_code}, %header{invocation-node})\n' "http://127.0.0.1:8080$2"; }
serves() { at "$1" curl -sf -m 10 "http://127.0.0.1:8080$2"; }
refuses() { ! serves "$@"; }
# An acknowledged report is kept, and is read from the queue of its function a moment later.
knows() { serves "$1" /average | grep -q "$2"; }
say() { printf '\n== %s\n' "$*"; }

start north 10.88.0.1
start south 10.88.0.2
run north cluster init --name north >/dev/null
run south cluster join "$(run north cluster token)" --name south

say "one deploy and one policy, for both sites"
run north deploy "$here"
run north policy set "$here/policy.yaml"
wait_for serves north /average
run north nodes

say "sensors report to the south"
for reading in roof:18.5 cellar:11.5 hall:21; do
    at south mosquitto_pub -q 1 -t "sensors/${reading%:*}/temperature" -m "${reading#*:}"
done
wait_for knows south '"sensors":3'
ask south /average
ask north /average
ask north '/fahrenheit?celsius=20'

say "why: a call of average that comes to the north"
run north policy explain average --entry north

say "the link is cut"
ip -n north link set wire down
wait_for refuses north /average
at south mosquitto_pub -q 1 -t sensors/roof/temperature -m 19.5
wait_for knows south '"average":17.3'
ask south /average
ask south '/fahrenheit?celsius=20'
ask north '/fahrenheit?celsius=20'
ask north /average
run north policy explain average --entry north || :

say "the link is back"
ip -n north link set wire up
wait_for serves north /average
ask north /average
