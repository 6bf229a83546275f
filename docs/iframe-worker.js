// Search in pages opened from disk (file://), where browsers refuse workers: the script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      this.inside = this.frame.contentWindow
      this.inside.document.open()
      this.inside.document.write("<!doctype html><script>postMessage = data => parent.postMessage(data, '*')<\/script>")
      this.inside.document.close()
      this.loaded = new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.inside.document.body.appendChild(script)
      })
      addEventListener("message", event => {
        if (event.source !== this.inside) return
        const answer = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(answer)
        if (this.onmessage) this.onmessage(answer)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
