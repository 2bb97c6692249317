import json

import wit_world
from wit_world.imports import context, messaging, objects
from wit_world.imports.messaging import PublishOptions
from wit_world.imports.types import Event, Invocation, Reply, Reply_None_


class WitWorld(wit_world.WitWorld):
    def handle(self, invocation: Invocation, event: Event) -> Reply:
        place = event.trigger.value.topic.split("/")[1]
        celsius = json.loads(event.body)["celsius"]
        objects.register_set("{{name}}", f"latest-{place}", json.dumps(celsius).encode())
        if celsius > json.loads(context.config("limit_c") or "30"):
            alarm = json.dumps({"celsius": celsius}).encode()
            options = PublishOptions(1, False, "application/json", None, None, [])
            messaging.publish(f"{{name}}/{place}/alarm", alarm, options)
        return Reply_None_()
