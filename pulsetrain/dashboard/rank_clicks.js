// Tells the page which rank of the 3-D chart was clicked. Streamlit tells clicks on flat charts only.

const CHART = ".st-key-mesh .js-plotly-plot";
const STILL_PX = 5; // a pointer that moved further has turned the chart
const SETTLE_MS = 150; // Plotly says once a frame what is under the pointer

const under = new WeakMap(); // the rank under the pointer, by chart

const chartAt = (event) => (event.target instanceof Element ? event.target.closest(CHART) : null);

function follow(event) {
  const chart = chartAt(event);
  if (!chart?.on || under.has(chart)) return;
  const note = ({ points }) => under.set(chart, String(points?.[0]?.id ?? ""));
  under.set(chart, "");
  chart.on("plotly_hover", note);
  chart.on("plotly_click", note);
  chart.on("plotly_unhover", () => under.set(chart, ""));
}

export default function ({ setTriggerValue }) {
  const over = new AbortController();
  let down = null;

  const press = (event) => {
    follow(event);
    down = chartAt(event) ? [event.clientX, event.clientY] : null;
  };
  const release = (event) => {
    const chart = chartAt(event);
    const still = down && Math.hypot(event.clientX - down[0], event.clientY - down[1]) <= STILL_PX;
    down = null;
    if (!chart || !still) return;
    setTimeout(() => {
      const rank = under.get(chart);
      if (rank && !over.signal.aborted) setTriggerValue("rank", rank);
    }, SETTLE_MS);
  };

  const options = { capture: true, signal: over.signal };
  document.addEventListener("pointerover", follow, options);
  document.addEventListener("pointerdown", press, options);
  document.addEventListener("pointerup", release, options);
  return () => over.abort();
}
