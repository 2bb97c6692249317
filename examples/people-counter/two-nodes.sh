#!/bin/sh
# Two nodes of one cluster on this machine, each with the app. Ctrl-C stops them; their data goes with them.
# EDGEFAAS names the program if it is not in the PATH.
set -eu
app=$(cd "$(dirname "$0")" && pwd)
edgefaas=${EDGEFAAS:-edgefaas}
data=$(mktemp -d)
nodes=

# A second signal, after that of Ctrl-C, ends a node at once. Nothing is lost by it here: the data is thrown away.
stop() {
    trap - EXIT INT TERM
    [ -z "$nodes" ] || kill $nodes 2>/dev/null || :
    wait
    rm -rf "$data"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME NUMBER
start() {
    "$edgefaas" run --data-dir "$data/$1" --http "127.0.0.1:818$2" --mqtt "127.0.0.1:198$2" \
        --control "127.0.0.1:717$2" --p2p "127.0.0.1:718$2" >"$data/$1.log" 2>&1 &
    node=$!
    nodes="$nodes $node"
    until grep -qs '^ready' "$data/$1.log"; do
        if ! kill -0 "$node" 2>/dev/null; then
            cat "$data/$1.log" >&2
            exit 1
        fi
        sleep 0.1
    done
}
north() { "$edgefaas" --data-dir "$data/north" --node http://127.0.0.1:7171 "$@"; }
south() { "$edgefaas" --data-dir "$data/south" --node http://127.0.0.1:7172 "$@"; }

start north 1
start south 2
north cluster init --name north >/dev/null
south cluster join "$(north cluster token)" --name south

# Either of the two may dial; the one whose turn it is not waits 5 s for the other.
tries=100
until north -o json nodes | grep -q '"peer":{'; do
    tries=$((tries - 1))
    if [ "$tries" = 0 ]; then
        echo "the nodes are not connected; their logs:" >&2
        tail "$data/north.log" "$data/south.log" >&2
        exit 1
    fi
    sleep 0.2
done
# To both.
north deploy "$app"
north nodes

cat <<END

north  http://127.0.0.1:8181/people  mqtt 1981   edgefaas --data-dir $data/north --node http://127.0.0.1:7171 …
south  http://127.0.0.1:8182/people  mqtt 1982   edgefaas --data-dir $data/south --node http://127.0.0.1:7172 …

In another terminal: $app/walk.sh
Ctrl-C stops both.
END
wait
