"""Tries what a client may do, with Eclipse Paho. The task is JSON on stdin, the reason codes are JSON on stdout.

{"host", "port", "version": 4|5, "client_id", "user", "password", "will", "subscribe": [FILTER], "publish": [TOPIC],
 "ca", "cert", "key"} -> {"connack": CODE, "suback": [CODE], "puback": [CODE], "received": [TOPIC]}
"""

import json
import queue
import sys

import paho.mqtt.client as mqtt

task = json.load(sys.stdin)
events = queue.Queue()
received = []
client = mqtt.Client(
    mqtt.CallbackAPIVersion.VERSION2,
    client_id=task.get("client_id", "paho"),
    protocol=task["version"],
    reconnect_on_failure=False,
)
client.on_connect = lambda c, u, flags, code, p: events.put(("connack", code.value))
client.on_connect_fail = lambda *_: events.put(("connack", "closed"))
client.on_subscribe = lambda c, u, mid, codes, p: events.put(("suback", codes[0].value))
client.on_publish = lambda c, u, mid, code, p: events.put(("puback", code.value))
client.on_message = lambda c, u, message: received.append(message.topic)
client.on_disconnect = lambda *_: events.put(("gone", None))
if "user" in task:
    client.username_pw_set(task["user"], task.get("password"))
if "will" in task:
    client.will_set(task["will"], "gone", qos=1)
if "ca" in task:
    client.tls_set(ca_certs=task["ca"], certfile=task.get("cert"), keyfile=task.get("key"))


def wait(wanted):
    kind, value = events.get(timeout=60)
    assert kind == wanted, f"{kind} {value} in place of {wanted}"
    return value


result = {"suback": [], "puback": [], "received": received}
try:
    client.connect(task.get("host", "127.0.0.1"), task["port"])
    client.loop_start()
    kind, value = events.get(timeout=60)
    # A TLS 1.3 client has finished its handshake before the server has looked at its certificate.
    result["connack"] = value if kind == "connack" else "closed"
except OSError as error:
    result["connack"] = f"closed: {error}"
if result["connack"] == 0:
    for topic in task.get("subscribe", []):
        client.subscribe(topic, qos=1)
        result["suback"].append(wait("suback"))
    for topic in task.get("publish", []):
        client.publish(topic, "x", qos=1)
        result["puback"].append(wait("puback"))
    client.disconnect()
    wait("gone")
client.loop_stop()
print(json.dumps(result))
