// pycatj: writes a JSON document as one equivalence per value, `root["a"][0] = 1`. There it is a Python tool.
const DOCUMENT = JSON.stringify({
  site: "harbour",
  sensors: Array.from({ length: 50 }, (_, number) => ({
    id: `t-${number}`,
    place: { floor: number % 4, room: `room ${number}` },
    limits: [number, number + 10],
    alarms: number % 3 === 0,
  })),
});

function* lines(path, value) {
  if (value === null || typeof value !== "object") {
    yield `${path} = ${JSON.stringify(value)}`;
    return;
  }
  for (const [key, inner] of Object.entries(value)) {
    yield* lines(`${path}[${Array.isArray(value) ? key : JSON.stringify(key)}]`, inner);
  }
}

export default function equivalences() {
  return [...lines("root", JSON.parse(DOCUMENT))].join("\n");
}
