"""The timeline's canvas alone on a page, without Streamlit: what it is told, and what it tells."""

from __future__ import annotations

import base64

from playwright.sync_api import Page

from pulsetrain.dashboard import canvas

_HARNESS = """
window.told = [];
const host = document.getElementById("host");
const shadow = host.attachShadow({ mode: "open" });
shadow.innerHTML = document.getElementById("frame").innerHTML;
const script = new Blob([document.getElementById("script").textContent], { type: "text/javascript" });
const component = await import(URL.createObjectURL(script));
window.feed = (text) => {
  const data = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  component.default({
    data, parentElement: shadow,
    setStateValue: (name, value) => window.told.push([name, value]),
    setTriggerValue: (name, value) => window.told.push([name, value]),
  });
};
window.ready = true;
"""


def open_canvas(page: Page, *, query: str = "", paper: str = "#ffffff") -> None:
    """Open an empty page with the component on it. `query` is the page's address."""
    style = f"margin:0;background:{paper};--st-text-color:#888"
    html = f"""<!doctype html><meta charset="utf-8"><body style="{style}">
      <template id="frame">{canvas.frame()}<style>{canvas.style()}</style></template>
      <script type="text/plain" id="script">{canvas.script()}</script>
      <div id="host" style="width:1200px"></div><script type="module">{_HARNESS}</script></body>"""
    page.route("http://canvas.test/**", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"http://canvas.test/timeline{query}")
    page.wait_for_function("window.ready")


def feed(page: Page, data: bytes) -> None:
    """Give the component bytes to draw, and wait until they are drawn."""
    page.evaluate("text => window.feed(text)", base64.b64encode(data).decode())
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def told(page: Page) -> list[list[object]]:
    """What the component has told the page: names and values, oldest first."""
    found: list[list[object]] = page.evaluate("window.told")
    return found


def pixels(page: Page, colour: str) -> int:
    """How many pixels of the plot have this colour, up to what smoothing takes from it."""
    count: int = page.evaluate(
        """colour => {
          const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
          const host = document.querySelector("[data-testid=stBidiComponentIsolated], #host");
          const plot = host.shadowRoot.querySelector(".plot");
          const data = plot.getContext("2d").getImageData(0, 0, plot.width, plot.height).data;
          const far = (i) => Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b);
          let found = 0;
          for (let i = 0; i < data.length; i += 4) found += data[i + 3] > 200 && far(i) < 12;
          return found;
        }""",
        colour,
    )
    return count
