// Calls a function over MQTT with MQTT.js: PORT VERSION(4|5) FUNCTION DATA.
const mqtt = require("mqtt");

const [port, version, name, data] = process.argv.slice(2);
const five = version === "5";
const reply = five ? "mqttjs/answers" : `$faas/fn/${name}/result/one`;
const topic = five ? `$faas/fn/${name}/invoke` : `$faas/fn/${name}/invoke/one`;
const properties = { responseTopic: reply, correlationData: Buffer.from("one") };

const client = mqtt.connect(`mqtt://127.0.0.1:${port}`, { protocolVersion: Number(version) });
const give_up = setTimeout(() => {
  console.error("no answer");
  process.exit(1);
}, 60_000);
client.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
client.on("message", (_, payload, packet) => {
  if (five && packet.properties.correlationData.toString() !== "one") process.exit(1);
  console.log(payload.toString());
  clearTimeout(give_up);
  client.end();
});
client.on("connect", () => {
  client.subscribe(reply, { qos: 1 }, (error) => {
    if (error) throw error;
    client.publish(topic, data, { qos: 2, properties: five ? properties : undefined });
  });
});
