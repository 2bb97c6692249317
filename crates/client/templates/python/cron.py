import json

import wit_world
from wit_world.imports import context, messaging, objects
from wit_world.imports.context import LogLevel
from wit_world.imports.messaging import PublishOptions
from wit_world.imports.types import Event, Invocation, Reply, Reply_None_


class WitWorld(wit_world.WitWorld):
    def handle(self, invocation: Invocation, event: Event) -> Reply:
        objects.counter_add("{{name}}", "runs", 1)
        due = event.trigger.value.scheduled_unix_ms
        context.log(LogLevel.INFO, f"run {objects.counter_value('{{name}}', 'runs')} was due at {due}")
        options = PublishOptions(0, False, "application/json", None, None, [])
        messaging.publish("{{name}}/tick", json.dumps({"due": due}).encode(), options)
        return Reply_None_()
