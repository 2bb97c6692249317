export default async function handler(event, context) {
  context.log.info(`an event of the kind ${event.kind}`);
  return { hello: event.text() || "{{name}}" };
}
