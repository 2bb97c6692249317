// terrain: a stress test of a distant backend by many parallel requests.
const REQUESTS = 100;

export default async function terrain() {
  const one = async (number) => {
    const answer = await fetch(`http://10.77.2.2:8080/tiles/${number}`);
    if (answer.status !== 200) throw new Error(`tile ${number}: status ${answer.status}`);
    return (await answer.arrayBuffer()).byteLength;
  };
  const sizes = await Promise.all(Array.from({ length: REQUESTS }, (_, number) => one(number)));
  return { bytes: sizes.reduce((sum, bytes) => sum + bytes, 0) };
}
