// Walks a broker through what MQTT.js has: sessions, QoS 2, wills, retained messages, shared subscriptions.
const assert = require("node:assert");
const mqtt = require("mqtt");

// A port on this machine or a URL, and the version.
const [place, level] = process.argv.slice(2);
const url = place.includes("://") ? place : `mqtt://127.0.0.1:${place}`;
const version = Number(level);
const v5 = version === 5;
const giveUp = setTimeout(() => { throw new Error("not in time"); }, 60_000);

/** A client and a queue of what it gets. */
async function connect(clientId, { lasting = false, will } = {}) {
  const options = { clientId, protocolVersion: version, clean: !lasting, reconnectPeriod: 0, will };
  if (v5 && lasting) options.properties = { sessionExpiryInterval: 3600 };
  const client = mqtt.connect(url, options);
  const messages = [], waiting = [];
  client.on("message", (topic, payload, packet) => {
    const message = { topic, text: payload.toString(), packet };
    waiting.length > 0 ? waiting.shift()(message) : messages.push(message);
  });
  let leaving = false;
  // What comes while it leaves it acknowledges into a stream that has ended.
  client.on("error", (error) => { if (!leaving || error.code !== "ERR_STREAM_WRITE_AFTER_END") throw error; });
  const connack = await new Promise((resolve) => client.once("connect", resolve));
  const next = () => messages.length > 0 ? messages.shift() : new Promise((resolve) => waiting.push(resolve));
  const take = async (count) => {
    const taken = [];
    while (taken.length < count) taken.push(await next());
    return taken;
  };
  return { client, connack, messages, take, leave: () => { leaving = true; return client.endAsync(); } };
}

const texts = (messages) => messages.map((message) => message.text);

async function sessions(publisher) {
  let subscriber = await connect("js-away", { lasting: true });
  assert.equal(subscriber.connack.sessionPresent, false);
  await subscriber.client.subscribeAsync("away/#", { qos: 2 });
  await publisher.client.publishAsync("away/0", "live", { qos: 2 });
  assert.deepEqual(texts(await subscriber.take(1)), ["live"]);
  await subscriber.leave();
  const expected = [[], []];
  for (let number = 0; number < 50; number++) {
    await publisher.client.publishAsync(`away/${number % 3}`, `${number}`, { qos: 1 + (number % 2) });
    expected[number % 2].push(`${number}`);
  }
  subscriber = await connect("js-away", { lasting: true });
  assert.equal(subscriber.connack.sessionPresent, true);
  const got = await subscriber.take(50);
  // Those of QoS 2 are handed over at PUBREL: in order among themselves.
  for (const qos of [1, 2]) assert.deepEqual(texts(got.filter(({ packet }) => packet.qos === qos)), expected[qos - 1]);
  await subscriber.leave();
  await (await connect("js-away")).leave();
  const again = await connect("js-away", { lasting: true });
  assert.equal(again.connack.sessionPresent, false);
  await again.leave();
}

async function wills(publisher) {
  const watcher = await connect("js-watcher");
  await watcher.client.subscribeAsync("will/#", { qos: 2 });
  const goodbye = await connect("js-goodbye", { will: { topic: "will/goodbye", payload: Buffer.from("bye"), qos: 1 } });
  await goodbye.leave();
  const will = { topic: "will/mortal", payload: Buffer.from("gone"), qos: 2, retain: true };
  const mortal = await connect("js-mortal", { will });
  mortal.client.stream.destroy();
  assert.deepEqual(texts(await watcher.take(1)), ["gone"]);
  const late = await connect("js-late");
  await late.client.subscribeAsync("will/#", { qos: 2 });
  const [message] = await late.take(1);
  assert.deepEqual([message.text, message.packet.retain, message.packet.qos], ["gone", true, 2]);
  await publisher.client.publishAsync("will/mortal", "", { qos: 1, retain: true });
  await late.leave();
  await watcher.leave();
}

async function retained(publisher) {
  await publisher.client.publishAsync("kept/a", "1", { qos: 1, retain: true });
  await publisher.client.publishAsync("kept/b", "2", { qos: 2, retain: true });
  const client = await connect("js-kept");
  await client.client.subscribeAsync("kept/#", { qos: 1 });
  assert.deepEqual(texts(await client.take(2)).sort(), ["1", "2"]);
  if (v5) {
    await client.client.subscribeAsync("kept/#", { qos: 1, rh: 1, rap: true, nl: true });
    await client.client.publishAsync("kept/c", "own", { qos: 1 });
    await publisher.client.publishAsync("kept/a", "3", { qos: 1, retain: true });
    const [message] = await client.take(1);
    assert.deepEqual([message.text, message.packet.retain], ["3", true]);
  }
  await client.leave();
  for (const topic of ["kept/a", "kept/b"]) await publisher.client.publishAsync(topic, "", { qos: 1, retain: true });
}

async function shared(publisher) {
  const members = await Promise.all([1, 2, 3].map((number) => connect(`js-member-${number}`)));
  for (const member of members) await member.client.subscribeAsync("$share/js/work/+", { qos: 1 });
  for (let number = 0; number < 30; number++) {
    await publisher.client.publishAsync(`work/${number}`, `${number}`, { qos: 1 });
  }
  const all = new Set();
  let count = 0;
  while (count < 30) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    for (const member of members) for (const message of member.messages.splice(0)) (all.add(message.text), count++);
  }
  assert.equal(all.size, 30, "each message to one member");
  for (const member of members) await member.leave();
}

async function properties(publisher) {
  const client = await connect("js-properties");
  await client.client.subscribeAsync("properties", { qos: 2, properties: { subscriptionIdentifier: 321 } });
  const sent = {
    contentType: "text/plain", responseTopic: "reply", correlationData: Buffer.from([0, 255]),
    messageExpiryInterval: 100, payloadFormatIndicator: true, userProperties: { b: ["1", "3"], a: "2" },
  };
  await publisher.client.publishAsync("properties", "x", { qos: 2, properties: sent });
  const [{ packet }] = await client.take(1);
  const { messageExpiryInterval, userProperties, ...rest } = packet.properties;
  assert(messageExpiryInterval > 80 && messageExpiryInterval <= 100, `${messageExpiryInterval} s`);
  assert.deepEqual({ ...userProperties }, sent.userProperties);
  assert.deepEqual(rest, {
    contentType: "text/plain", responseTopic: "reply", correlationData: Buffer.from([0, 255]),
    payloadFormatIndicator: true, subscriptionIdentifier: 321,
  });
  await client.leave();
}

(async () => {
  const publisher = await connect("js-publisher");
  await sessions(publisher);
  await wills(publisher);
  await retained(publisher);
  await shared(publisher);
  if (v5) await properties(publisher);
  await publisher.leave();
  clearTimeout(giveUp);
  console.log("ok");
})();
