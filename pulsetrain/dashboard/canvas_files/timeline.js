// The component: one Timeline for each place on a page. Streamlit calls the default export with each new `data`.

const ROW_PX = [13, 30]; // the least and the greatest height of a lane
const MOST_PX = 620; // height of the plot
const NEAREST_NS = 200; // the shortest time that is shown
const QUIET_MS = 400; // after the last change, before the page's address is told

class Timeline {
  constructor(root, told) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    [this.plot, this.axis, this.scroller] = [".plot", ".axis", ".scroller"].map(this.find);
    const address = new URLSearchParams(window.location.search);
    this.wanted = address.get("view") || "";
    this.view = { from: 0, to: 1, width: 0, height: 0, scroll: 0, row: 20, rank: rankIn(address.get("rank")), chosen: -1, hover: -1 };
    this.scene = null;
    this.whole = true;
    this.lane = 0;
    this.told = told;
    this.listen();
  }

  // New bytes. Nothing is drawn if they are those that are shown.
  load(bytes) {
    if (this.scene && digestOf(bytes) === this.scene.digest) return;
    const before = this.scene;
    this.scene = readPayload(bytes);
    this.fail("");
    this.keepPlace(before);
    this.view.chosen = this.view.hover = -1;
    this.find(".tip").hidden = true;
    this.plot.setAttribute("aria-label", `Timeline. ${this.scene.summary}`);
    this.writeLegend();
    this.resize();
    if (!before) this.showBlamed();
    this.say();
    this.root.dataset.loads = String(Number(this.root.dataset.loads || 0) + 1);
  }

  // The same time as before, the part that the address names, or the whole.
  keepPlace(before) {
    const { scene, view } = this;
    if (before && !this.whole) {
      const moved = Number(BigInt(before.origin) - BigInt(scene.origin));
      if (view.to + moved > scene.full[0] && view.from + moved < scene.full[1]) return this.go(view.from + moved, view.to + moved, true);
    }
    const asked = before ? null : partOf(scene, this.wanted);
    this.whole = !asked;
    [view.from, view.to] = asked || scene.view;
  }

  showBlamed() {
    const first = this.scene.lanes.findIndex(({ rank }) => this.scene.states[rank] === "culprit");
    const chosen = this.scene.lanes.findIndex(({ rank }) => rank === this.view.rank);
    const lane = chosen >= 0 ? chosen : first;
    if (lane >= 0) this.scroller.scrollTop = lane * this.view.row - this.view.height / 2;
  }

  resize() {
    const { scene, view } = this;
    if (!scene) return;
    const room = Math.min(MOST_PX, window.innerHeight * 0.62);
    view.row = Math.max(ROW_PX[0], Math.min(ROW_PX[1], Math.floor(room / scene.lanes.length)));
    const whole = view.row * scene.lanes.length;
    view.height = Math.min(whole, Math.floor(room));
    this.scroller.style.height = `${view.height + 2}px`;
    this.find(".sizer").style.height = `${whole}px`;
    view.width = this.scroller.clientWidth;
    this.pens = [fitted(this.plot, view.width, view.height), fitted(this.axis, view.width, 34)];
    this.writeLanes();
    this.redraw();
  }

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.view.scroll = this.scroller.scrollTop;
      paint(this.pens[0], this.scene, this.view);
      paintAxis(this.pens[1], this.scene, this.view);
      this.root.dataset.view = this.part();
    });
  }

  writeLegend() {
    const parts = Object.entries(this.scene.colours).map(([name, colour]) => `<span><i style="background:${colour}"></i>${name}</span>`);
    if (this.scene.bubble_lane.length) parts.push('<span><i class="bubble"></i>pipeline bubble</span>');
    this.find(".legend").innerHTML = parts.join("");
  }

  // The names of the lanes are buttons, of which one can be reached by Tab.
  writeLanes() {
    const { scene, view } = this;
    this.lane = Math.min(this.lane, scene.lanes.length - 1);
    const hadFocus = this.find(".lanes").contains(this.root.getRootNode().activeElement);
    const buttons = scene.lanes.map((lane, number) => {
      const button = document.createElement("button");
      const again = number > 0 && scene.lanes[number - 1].rank === lane.rank;
      const look = scene.looks[scene.states[lane.rank]];
      const error = (scene.nodes.find(([name]) => name === lane.node) || [])[1];
      button.type = "button";
      button.className = again ? "sub" : "";
      button.tabIndex = number === this.lane ? 0 : -1;
      button.dataset.lane = number;
      button.style.cssText = `top:${number * view.row}px;height:${view.row}px;line-height:${view.row}px;font-size:${Math.min(13, view.row - 2)}px`;
      button.textContent = again ? lane.label : `${look ? look[1] + " " : ""}rank ${lane.rank} · ${lane.label}`;
      if (!again && error) button.append(Object.assign(document.createElement("span"), { className: "error", textContent: ` ± ${durationText(error)}` }));
      const clock = error === undefined || error === null ? "clock not compared" : `clock ± ${durationText(error)}`;
      const state = look ? `, ${look[0]}` : "";
      button.title = `rank ${lane.rank} on ${lane.node}${state}, ${clock}`;
      button.setAttribute("aria-label", `rank ${lane.rank}, ${lane.label}${state}, ${lane.last - lane.first} spans`);
      return button;
    });
    this.find(".lanes").replaceChildren(...buttons);
    if (hadFocus) buttons[this.lane].focus({ preventScroll: true });
  }

  listen() {
    const { plot, scroller } = this;
    plot.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    plot.addEventListener("pointerdown", (event) => this.press(event));
    plot.addEventListener("pointermove", (event) => this.move(event));
    plot.addEventListener("pointerup", (event) => this.release(event));
    plot.addEventListener("pointerleave", () => this.hover(-1));
    plot.addEventListener("keydown", (event) => this.onKey(event, PLOT_KEYS));
    scroller.addEventListener("scroll", () => this.redraw());
    this.find(".lanes").addEventListener("keydown", (event) => this.onKey(event, LANE_KEYS));
    this.find(".lanes").addEventListener("focusin", (event) => this.enterLane(Number(event.target.dataset.lane)));
    this.find(".lanes").addEventListener("focusout", () => this.hover(-1));
    this.find(".lanes").addEventListener("click", (event) => this.chooseRank(this.scene.lanes[event.target.closest("button").dataset.lane].rank));
    this.find(".tools").addEventListener("click", (event) => event.target.dataset.do && this[event.target.dataset.do]());
    this.find(".open").addEventListener("click", () => this.told.open(this.view.rank));
    this.watcher = new ResizeObserver(() => this.scroller.clientWidth !== this.view.width && this.resize());
    this.watcher.observe(this.root);
  }

  close() {
    this.watcher.disconnect();
    clearTimeout(this.quiet);
    cancelAnimationFrame(this.asked);
  }

  // Show another part of the time. It stays inside what there is.
  go(from, to, quietly = false) {
    const [first, last] = this.scene.full;
    const length = Math.min(last - first, Math.max(NEAREST_NS, to - from));
    this.view.from = Math.max(first, Math.min(last - length, from));
    this.view.to = this.view.from + length;
    this.whole = false;
    this.redraw();
    if (!quietly) this.tell();
  }

  zoom(factor, at = (this.view.from + this.view.to) / 2) {
    this.go(at - (at - this.view.from) * factor, at + (this.view.to - at) * factor);
  }

  in() { this.zoom(0.7); }
  out() { this.zoom(1 / 0.7); }
  shift(share) {
    const by = (this.view.to - this.view.from) * share;
    this.go(this.view.from + by, this.view.to + by);
  }

  home() {
    [this.view.from, this.view.to] = this.scene.view;
    this.whole = true;
    this.redraw();
    this.tell();
  }

  // What is shown as step:from:to in ms after that step began, "" for the whole.
  part() {
    if (this.whole) return "";
    const base = baseStep(this.scene, this.view.from);
    return [base.step, ...[this.view.from, this.view.to].map((time) => ((time - base.start) / 1e6).toFixed(4))].join(":");
  }

  tell() {
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => this.told.view(this.part()), QUIET_MS);
  }

  wheel(event) {
    if (!this.scene || event.shiftKey) return; // with Shift the lanes scroll
    event.preventDefault();
    const turned = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) this.shift(event.deltaX / this.view.width);
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, turned / 300))), timeAt(this.view, this.place(event).x));
  }

  place(event) {
    const box = this.plot.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  press(event) {
    if (event.button !== 0) return;
    this.drag = { x: event.clientX, y: event.clientY, from: this.view.from, to: this.view.to, top: this.scroller.scrollTop, far: false };
    this.plot.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { drag, view } = this;
    if (!drag) {
      const { x, y } = this.place(event);
      this.hover(spanAt(this.scene, view, x, y), { x, y });
      return;
    }
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    drag.far ||= Math.hypot(x, y) > 4;
    if (!drag.far) return;
    this.plot.classList.add("dragged");
    this.hover(-1);
    const by = (-x / (view.width - LABEL_PX)) * (drag.to - drag.from);
    this.scroller.scrollTop = drag.top - y;
    this.go(drag.from + by, drag.to + by);
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    this.plot.classList.remove("dragged");
    if (!drag || drag.far) return;
    const { x, y } = this.place(event);
    this.choose(spanAt(this.scene, this.view, x, y));
  }

  // Choose a span and its rank. What is chosen already is opened. -1 chooses nothing.
  choose(i) {
    if (i >= 0 && i === this.view.chosen) return this.told.open(rankOf(this.scene, i));
    this.view.chosen = i;
    this.chooseRank(i < 0 ? -1 : rankOf(this.scene, i));
  }

  chooseRank(rank) {
    if (this.view.chosen >= 0 && rankOf(this.scene, this.view.chosen) !== rank) this.view.chosen = -1;
    if (rank !== this.view.rank) this.told.rank(rank < 0 ? "" : String(rank));
    this.view.rank = rank;
    this.say();
    this.redraw();
  }

  // What is chosen, in words, and the button to its rank's page.
  say() {
    const { scene, view } = this;
    const words = view.chosen < 0 ? [] : [...describe(scene, view.chosen), arrivalText(scene, membersOf(scene, view.chosen))];
    const rank = view.rank < 0 ? "" : `rank ${view.rank}`;
    this.find(".chosen").textContent = words.length ? words.filter(Boolean).join(" · ") : rank;
    this.find(".open").hidden = view.rank < 0;
    this.find(".open").textContent = `Open rank ${view.rank}`;
  }

  hover(i, place = null) {
    const { scene, view } = this;
    const tip = this.find(".tip");
    if (i !== view.hover) this.redraw();
    view.hover = i;
    tip.hidden = i < 0;
    if (i < 0) return;
    const [first, ...lines] = describe(scene, i);
    const head = Object.assign(document.createElement("b"), { textContent: first });
    tip.replaceChildren(head, ...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    const box = boxOf(scene, view, i);
    const { x, y } = place || { x: Math.max(LABEL_PX, box.left), y: box.top + box.height };
    const top = this.scroller.offsetTop + y + 16;
    tip.style.left = `${Math.max(0, Math.min(x + 12, view.width - tip.offsetWidth - 8))}px`;
    tip.style.top = `${top + tip.offsetHeight > this.root.offsetHeight ? top - tip.offsetHeight - 30 : top}px`;
  }

  onKey(event, keys) {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act(this);
  }

  scrollBy(rows) {
    this.scroller.scrollTop += rows * this.view.row;
  }

  toLane(number) {
    const buttons = this.find(".lanes").children;
    const lane = Math.max(0, Math.min(buttons.length - 1, number));
    buttons[this.lane].tabIndex = -1;
    buttons[lane].tabIndex = 0;
    buttons[lane].focus();
  }

  // The focus is on a lane: its first visible span is shown.
  enterLane(number) {
    this.find(".lanes").children[this.lane].tabIndex = -1;
    this.lane = number;
    this.find(".lanes").children[number].tabIndex = 0;
    this.view.scroll = this.scroller.scrollTop;
    this.hover(this.spansOf(number).find((i) => isVisible(this.scene, this.view, i)) ?? -1);
  }

  // The next or previous span of the lane. The view follows it.
  toSpan(by) {
    const spans = this.spansOf(this.lane);
    const i = spans[Math.max(0, Math.min(spans.length - 1, spans.indexOf(this.view.hover) + by))];
    const { from, to } = this.view;
    const middle = isEndless(this.scene, i) ? this.scene.start[i] : (this.scene.start[i] + this.scene.end[i]) / 2;
    if (middle < from || middle > to) this.go(middle - (to - from) / 2, middle + (to - from) / 2);
    this.hover(i);
    this.find(".chosen").textContent = describe(this.scene, i).join(" · ");
  }

  spansOf(number) {
    const { first, last } = this.scene.lanes[number];
    return Array.from({ length: last - first }, (_, k) => first + k);
  }

  // Show what is wrong in place of the timeline. "": all is well again.
  fail(problem) {
    const box = this.find(".problem");
    if (!problem && box.hidden) return;
    for (const part of this.root.children) part.hidden = Boolean(problem) || part === box || part.classList.contains("tip");
    box.hidden = !problem;
    box.textContent = problem && `The timeline cannot be drawn: ${problem}. The table below holds the same.`;
  }
}

const ZOOM_KEYS = { "+": (t) => t.in(), "=": (t) => t.in(), "-": (t) => t.out(), Home: (t) => t.home() };
const PLOT_KEYS = {
  ...ZOOM_KEYS,
  ArrowLeft: (t) => t.shift(-0.2),
  ArrowRight: (t) => t.shift(0.2),
  ArrowUp: (t) => t.scrollBy(-3),
  ArrowDown: (t) => t.scrollBy(3),
  Escape: (t) => t.choose(-1),
};
const LANE_KEYS = {
  ...ZOOM_KEYS,
  ArrowUp: (t) => t.toLane(t.lane - 1),
  ArrowDown: (t) => t.toLane(t.lane + 1),
  ArrowLeft: (t) => t.toSpan(-1),
  ArrowRight: (t) => t.toSpan(1),
  Enter: (t) => (t.view.hover < 0 ? t.chooseRank(t.scene.lanes[t.lane].rank) : t.choose(t.view.hover)),
  Escape: (t) => t.choose(-1),
};

// A canvas of this size in CSS pixels, sharp on its screen.
function fitted(canvas, width, height) {
  const sharp = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * sharp), Math.round(height * sharp)];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  return pen;
}

const rankIn = (text) => (/^\d+$/.test(text || "") ? Number(text) : -1);

// step:from:to of an address as [from, to]. null where it names nothing that there is.
function partOf(scene, text) {
  const [step, from, to] = text.split(":").map(Number);
  const section = scene.sections.filter((s) => s[1] === step).pop();
  if (!section || !(to > from)) return null;
  const part = [section[2] + from * 1e6, section[2] + to * 1e6];
  return part[1] > scene.full[0] && part[0] < scene.full[1] ? part : null;
}

const timelines = new WeakMap();

export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  const root = parentElement.querySelector(".timeline");
  let timeline = timelines.get(root);
  if (!timeline) {
    timeline = new Timeline(root, {});
    timelines.set(root, timeline);
  }
  timeline.told.view = (part) => setStateValue("view", part);
  timeline.told.rank = (rank) => setStateValue("rank", rank);
  timeline.told.open = (rank) => setTriggerValue("open", rank);
  try {
    timeline.load(data);
  } catch (error) {
    timeline.fail(error.message);
  }
  // Streamlit also calls this for a call that a newer one has overtaken: then the timeline is still in use.
  return () => {
    if (!root.isConnected) timeline.close();
  };
}
