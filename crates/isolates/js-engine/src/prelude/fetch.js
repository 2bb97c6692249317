// fetch: requests to other servers, carried out by the node.
(native) => {
  // The stack is that of the call: when the answer comes, the caller is gone from it.
  function failure(error, stack) {
    const failed = new TypeError(`fetch failed: ${error.message}`, { cause: error });
    failed.code = error.code;
    Object.defineProperty(failed, "stack", { value: stack, writable: true, configurable: true });
    return failed;
  }

  async function fetch(input, init = undefined) {
    if (arguments.length === 0) throw new TypeError("fetch: the URL is missing");
    const request = new Request(input, init);
    const { method, redirect } = request;
    const url = request.url.split("#")[0];
    if (!/^https?:/.test(url)) throw new TypeError(`fetch: ${native.quote(url.split(":")[0])} cannot be fetched; the URL has to begin with http: or https:`);
    const signal = native.signalOf(request);
    signal?.throwIfAborted();
    const { stack } = new Error();
    let body = native.body.take(request, signal);
    if (body instanceof Promise) body = await body;
    signal?.throwIfAborted();
    let ticket;
    try {
      ticket = native.fetch(method, url, native.headerList(request.headers), body, redirect);
    } catch (error) {
      throw failure(error, stack);
    }
    return new Promise((resolve, reject) => {
      const forget = signal && native.onAbort(signal, (reason) => {
        native.dropTicket(ticket);
        reject(reason);
      });
      native.waitFor(ticket, {
        resolve(answer) {
          forget?.();
          resolve(native.fetchedResponse(method, answer));
        },
        reject(error) {
          forget?.();
          reject(failure(error, stack));
        },
      });
    });
  }

  native.define({ fetch });
};
