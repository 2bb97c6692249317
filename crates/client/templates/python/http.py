import json

import wit_world
from wit_world.imports import context, objects
from wit_world.imports.context import LogLevel
from wit_world.imports.types import Event, Invocation, Reply, Reply_Text


class WitWorld(wit_world.WitWorld):
    def handle(self, invocation: Invocation, event: Event) -> Reply:
        name = event.body.decode() or "world"
        objects.counter_add("{{name}}", "greeted", 1)
        context.log(LogLevel.INFO, f"greeting {name}")
        greeting = json.loads(context.config("greeting") or '"Hello"')
        number = objects.counter_value("{{name}}", "greeted")
        return Reply_Text(f"{greeting}, {name}! You are number {number}.\n")
