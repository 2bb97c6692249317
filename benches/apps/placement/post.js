// slackpost: posts a message to a chat server.
export default async function post() {
  const answer = await fetch("http://10.77.2.2:8080/messages", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ channel: "alarms", text: "It is warm in the harbour." }),
  });
  return { status: answer.status };
}
