"""Calls a function over MQTT with Eclipse Paho: PORT VERSION(4|5) FUNCTION DATA."""

import queue
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port, version, function, data = sys.argv[1:]
answers = queue.Queue()
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="paho", protocol=int(version))
client.on_message = lambda client, userdata, message: answers.put(message)
client.on_subscribe = lambda *_: answers.put(None)
client.connect("127.0.0.1", int(port))
client.loop_start()
if version == "5":
    reply, topic = "paho/answers", f"$faas/fn/{function}/invoke"
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = reply
    properties.CorrelationData = b"one"
else:
    reply, topic = f"$faas/fn/{function}/result/one", f"$faas/fn/{function}/invoke/one"
    properties = None
client.subscribe(reply, qos=2)
assert answers.get(timeout=60) is None
client.publish(topic, data, qos=2, properties=properties)
answer = answers.get(timeout=60)
if version == "5":
    assert answer.properties.CorrelationData == b"one", answer.properties
print(answer.payload.decode())
client.disconnect()
client.loop_stop()
