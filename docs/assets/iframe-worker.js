// A page that is opened from a disk may start no worker, and the search runs in one. Here a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.inner = new Promise(resolve => {
        const script = inner.document.createElement("script")
        script.src = url
        script.onload = () => resolve(inner)
        inner.document.body.append(script)
      })
    }
    postMessage(data) {
      this.inner.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
