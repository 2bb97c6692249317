"""Walks a broker through what paho has: sessions, QoS 2, wills, retained messages, shared subscriptions."""

import queue
import sys
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

PORT, VERSION = int(sys.argv[1]), int(sys.argv[2])
V5 = VERSION == 5
PATIENCE = 30


class Client:
    """A client on a thread of its own; what it gets is in `messages`."""

    def __init__(self, name, lasting=False, will=None, expiry=3600):
        self.messages = queue.Queue()
        self.connected, self.subscribed = queue.Queue(), queue.Queue()
        options = {} if V5 else {"clean_session": not lasting}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5 if V5 else mqtt.MQTTv311, **options
        )
        self.client.on_connect = lambda client, data, flags, reason, properties: self.connected.put((flags, reason))
        self.client.on_subscribe = lambda client, data, mid, reasons, properties: self.subscribed.put(reasons)
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        if will:
            self.client.will_set(*will)
        if V5:
            properties = Properties(PacketTypes.CONNECT)
            if lasting:
                properties.SessionExpiryInterval = expiry
            self.client.connect("127.0.0.1", PORT, clean_start=not lasting, properties=properties)
        else:
            self.client.connect("127.0.0.1", PORT)
        self.client.loop_start()
        flags, reason = self.connected.get(timeout=PATIENCE)
        assert reason == 0, reason
        self.session_present = flags.session_present

    def subscribe(self, *arguments, **options):
        self.client.subscribe(*arguments, **options)
        reasons = self.subscribed.get(timeout=PATIENCE)
        assert all(reason.value < 0x80 for reason in reasons), reasons

    def publish(self, topic, payload, qos=1, **options):
        self.client.publish(topic, payload, qos, **options).wait_for_publish(PATIENCE)

    def take(self, count):
        return [self.messages.get(timeout=PATIENCE) for _ in range(count)]

    def texts(self, count):
        return [message.payload.decode() for message in self.take(count)]

    def leave(self):
        self.client.disconnect()
        self.client.loop_stop()

    def die(self):
        """Ends the connection without DISCONNECT."""
        ended = threading.Event()
        self.client.on_disconnect = lambda *_: ended.set()
        self.client.socket().shutdown(2)
        self.client.loop_stop()


def sessions(publisher):
    subscriber = Client("paho-away", lasting=True)
    assert not subscriber.session_present
    subscriber.subscribe("away/#", 2)
    publisher.publish("away/0", "live", 2)
    assert subscriber.texts(1) == ["live"]
    subscriber.leave()
    for number in range(50):
        publisher.publish(f"away/{number % 3}", str(number), 1 + number % 2)
    subscriber = Client("paho-away", lasting=True)
    assert subscriber.session_present
    messages = subscriber.take(50)
    # Those of QoS 2 are handed over at PUBREL: in order among themselves.
    for qos in (1, 2):
        got = [message.payload.decode() for message in messages if message.qos == qos]
        assert got == [str(number) for number in range(qos - 1, 50, 2)], got
    subscriber.leave()
    # A clean start ends it.
    Client("paho-away").leave()
    again = Client("paho-away", lasting=True, expiry=1)
    assert not again.session_present
    again.leave()


def wills(publisher):
    watcher = Client("paho-watcher")
    watcher.subscribe("will/#", 2)
    Client("paho-goodbye", will=("will/goodbye", "said goodbye", 1, False)).leave()
    Client("paho-mortal", will=("will/mortal", "gone", 2, True)).die()
    assert watcher.texts(1) == ["gone"]
    late = Client("paho-late")
    late.subscribe("will/#", 2)
    message = late.take(1)[0]
    assert (message.payload, message.retain, message.qos) == (b"gone", True, 2)
    publisher.publish("will/mortal", "", retain=True)
    late.leave()
    watcher.leave()


def retained(publisher):
    publisher.publish("kept/a", "1", retain=True)
    publisher.publish("kept/b", "2", retain=True)
    client = Client("paho-kept")
    client.subscribe("kept/#", 1)
    messages = client.take(2)
    assert sorted(message.payload for message in messages) == [b"1", b"2"]
    assert all(message.retain for message in messages)
    if V5:
        # Not again; with the flag as published; not its own.
        client.subscribe("kept/#", options=SubscribeOptions(1, retainAsPublished=True, retainHandling=1, noLocal=True))
        client.publish("kept/c", "own")
        publisher.publish("kept/a", "3", retain=True)
        message = client.take(1)[0]
        assert (message.payload, message.retain) == (b"3", True), message.payload
    client.leave()
    for topic in "abc":
        publisher.publish(f"kept/{topic}", "", retain=True)


def shared(publisher):
    members = [Client(f"paho-member-{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/paho/work/+", 1)
    for number in range(30):
        publisher.publish(f"work/{number}", str(number))
    publisher.publish("work/end", "end")
    got = set()
    while len(got) < 31:
        for member in members:
            try:
                got.add(member.messages.get(timeout=0.05).payload.decode())
            except queue.Empty:
                pass
    assert len(got) == 31 and all(member.messages.empty() for member in members)
    for member in members:
        member.leave()


def properties(publisher):
    client = Client("paho-properties")
    client.subscribe("properties", 2)
    sent = Properties(PacketTypes.PUBLISH)
    sent.UserProperty = [("b", "1"), ("a", "2"), ("b", "3")]
    sent.ContentType, sent.ResponseTopic, sent.CorrelationData = "text/plain", "reply", b"\x00\xff"
    sent.MessageExpiryInterval, sent.PayloadFormatIndicator = 100, 1
    publisher.publish("properties", "x", 2, properties=sent)
    got = client.take(1)[0].properties
    assert got.UserProperty == sent.UserProperty, got.UserProperty
    assert (got.ContentType, got.ResponseTopic, got.CorrelationData) == ("text/plain", "reply", b"\x00\xff")
    assert got.PayloadFormatIndicator == 1 and 80 < got.MessageExpiryInterval <= 100
    client.leave()


publisher = Client("paho-publisher")
sessions(publisher)
wills(publisher)
retained(publisher)
shared(publisher)
if V5:
    properties(publisher)
publisher.leave()
print("ok")
