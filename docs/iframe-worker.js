// A page that is opened from a file may start no worker, so the search runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.isReady = new Promise(done => { script.onload = done; });
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      const message = new this.inside.MessageEvent("message", {data});
      this.isReady.then(() => this.inside.dispatchEvent(message));
    }
  };
}
