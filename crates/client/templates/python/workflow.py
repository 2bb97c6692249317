import json

import wit_world
from wit_world.imports import context
from wit_world.imports.types import Event, Invocation, Reply, Reply_Json


class WitWorld(wit_world.WitWorld):
    def handle(self, invocation: Invocation, event: Event) -> Reply:
        each = json.loads(context.config("each") or "4")
        return Reply_Json(json.dumps({"total": json.loads(event.body)["pieces"] * each}))
