#!/bin/sh
# Sends people through the doors of both nodes of two-nodes.sh and waits until both nodes have the same total.
set -eu

# walk PORT DOOR WAY TIMES: so many messages of one person each.
walk() { yes 1 | head -n "$4" | mosquitto_pub -p "$1" -q 1 -t "doors/$2/$3" -l; }
ask() { curl -sf "http://127.0.0.1:$1/people"; }
inside() { ask "$1" | sed 's/.*"inside":\(-*[0-9]*\).*/\1/'; }

if ! ask 8181 >/dev/null || ! ask 8182 >/dev/null; then
    echo "two-nodes.sh does not run: there is nobody at 127.0.0.1:8181 and 8182" >&2
    exit 1
fi
before=$(inside 8181)
walk 1981 main in 30 &
walk 1982 garden in 20 &
wait
walk 1981 main out 5
walk 1982 garden out 8
expected=$((before + 30 + 20 - 5 - 8))

tries=300
until [ "$(inside 8181)" = "$expected" ] && [ "$(ask 8181)" = "$(ask 8182)" ]; do
    tries=$((tries - 1))
    if [ "$tries" = 0 ]; then
        echo "north: $(ask 8181)" >&2
        echo "south: $(ask 8182)" >&2
        echo "after 30 s they do not both have $expected" >&2
        exit 1
    fi
    sleep 0.1
done
echo "north: $(ask 8181)"
echo "south: $(ask 8182)"
