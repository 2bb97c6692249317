import { assert, test } from "@edgefaas/sdk/test";

test("a hot, dry zone opens its vent and starts its mister", async (t) => {
  await t.publish("greenhouse/east/climate", { temperature_c: 33, humidity_pct: 25 });
  assert.equal((await t.expectMessage("greenhouse/east/actuators/vent")).text(), "open");
  assert.equal((await t.expectMessage("greenhouse/east/actuators/mist")).text(), "on");
  await t.idle();
  const { latest } = await t.object("greenhouse/east").value();
  assert.equal(latest.comfort, "too dry");
});

test("a vent stays as it is between the thresholds", async (t) => {
  await t.publish("greenhouse/west/climate", { temperature_c: 26, humidity_pct: 60 });
  await t.expectMessage("greenhouse/west/actuators/vent", { where: (message) => message.text() === "open" });
  await t.publish("greenhouse/west/climate", { temperature_c: 24, humidity_pct: 60 });
  await t.expectNoMessage("greenhouse/west/actuators/vent");
});

test("an invalid reading changes nothing", async (t) => {
  await t.publish("greenhouse/attic/climate", "warm");
  await t.idle();
  assert.equal(await t.object("greenhouse/attic").get("latest"), undefined);
});

test("the simulator publishes a reading of each zone", async (t) => {
  await t.fire("simulator");
  for (const zone of ["north", "middle", "south"]) {
    const reading = (await t.expectMessage(`greenhouse/${zone}/climate`)).json();
    assert.ok(Number.isFinite(reading.temperature_c), `${zone}: ${JSON.stringify(reading)}`);
  }
});

test("the page has the averages of the readings", async (t) => {
  for (const temperature_c of [20, 22]) {
    await t.publish("greenhouse/north/climate", { temperature_c, humidity_pct: 70 });
  }
  await t.idle();
  const { readings } = await t.call("average", "north");
  assert.ok(readings >= 2);
  const zones = await (await t.fetch("/greenhouse")).json();
  assert.equal(zones.find(({ zone }) => zone === "north").average.readings, readings);
  const page = await t.fetch("/greenhouse", { headers: { accept: "text/html" } });
  assert.match(await page.text(), /<td>north<td>/);
});
