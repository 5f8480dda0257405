// Browsers run no worker from file://. There, run the script of a worker in a hidden frame instead, so that search works.
if (location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.scope.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.load(url).then(() => {
        this.ready = true
        for (const data of this.waiting.splice(0)) this.postMessage(data)
      })
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = resolve
        script.onerror = reject
        this.scope.document.head.appendChild(script)
      })
    }

    postMessage(data) {
      if (!this.ready) this.waiting.push(data)
      else this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
    }
  }
}
