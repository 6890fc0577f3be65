/* Search for pages opened from disk: a browser starts no worker there, so its script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><title>search</title>");
      inside.document.close();
      // What the script posts goes to the page; importScripts is for languages other than English.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = () => Promise.resolve();
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = new URL(address, document.baseURI).href;
        inside.document.head.appendChild(script);
      });
      this.inside = inside;
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
