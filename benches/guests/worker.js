// A greeting in the form that workerd and the node both run.
export default {
  fetch() {
    return new Response("hello");
  },
};
