// Clients of the node's broker.
import { connectAsync, type IClientOptions, type MqttClient } from "mqtt";
import type { Node } from "./node";

/** Connects a client, which does not connect again by itself. */
export function connectClient(node: Node, options: IClientOptions = {}): Promise<MqttClient> {
    return connectAsync(node.mqtt, { protocolVersion: 5, reconnectPeriod: 0, ...options });
}
