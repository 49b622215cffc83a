// Browsers refuse workers on pages that are opened from disk. There the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.isReady = new Promise((done) => {
        this.frame.addEventListener("load", () => this.start(url, done), { once: true })
      })
      document.body.append(this.frame)
    }

    start(url, done) {
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      script.addEventListener("load", () => done(inside))
      inside.document.body.append(script)
    }

    postMessage(data) {
      this.isReady.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
