// The search runs in a worker. A page that was opened as a file may start none: there it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.loaded = new Promise((resolve) => {
        frame.onload = () => {
          const script = frame.contentDocument.createElement("script");
          frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.onload = () => resolve(frame.contentWindow);
          script.src = url;
          frame.contentDocument.body.append(script);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.loaded.then((frame) => frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
