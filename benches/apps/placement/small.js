// mongoDB by HTTP: the small document, over connections that the node keeps.
export default async function small() {
  const answer = await fetch("http://10.77.2.1:7379/GET/small.txt");
  if (answer.status !== 200) throw new Error(`status ${answer.status}`);
  return (await answer.json()).name;
}
