// Draws a scene: `view` has from and to (ns), width, height (pixels), scroll, row (height of a lane), and what is chosen.

const LABEL_PX = 190;
const LEVEL_SHARE = [1, 0.55, 0.3]; // of a lane's height, by level
const MOST_ARROWS = 1500; // beyond, only those of the chosen rank are drawn

const xOf = (view, time) => LABEL_PX + ((time - view.from) / (view.to - view.from)) * (view.width - LABEL_PX);
const timeAt = (view, x) => view.from + ((x - LABEL_PX) / (view.width - LABEL_PX)) * (view.to - view.from);
const topOf = (view, lane) => lane * view.row - view.scroll;

// Whether a span goes on to the edge: it is open, and no later attempt has begun.
function isEndless(scene, i) {
  return isOpen(scene, i) && stepOf(scene, i).attempt === scene.newest;
}

// The box of a span in pixels, cut at the edges of the plot.
function boxOf(scene, view, i) {
  const share = LEVEL_SHARE[levelOf(scene, i)];
  const inner = view.row - 2;
  const left = Math.max(LABEL_PX, xOf(view, scene.start[i]));
  const right = isEndless(scene, i) ? view.width : Math.min(view.width, xOf(view, scene.end[i]));
  const top = topOf(view, scene.lane[i]) + 1 + inner * (1 - share);
  return { left, top, width: Math.max(1, right - left), height: inner * share };
}

function isVisible(scene, view, i) {
  return scene.start[i] <= view.to && (isEndless(scene, i) || scene.end[i] >= view.from);
}

// The span under a point, the innermost of several. -1 for none. Two pixels beside a short one still count.
function spanAt(scene, view, x, y) {
  const lane = scene.lanes[Math.floor((y + view.scroll) / view.row)];
  if (!lane || x < LABEL_PX) return -1;
  let found = -1;
  for (let i = lane.first; i < lane.last; i++) {
    if (!isVisible(scene, view, i)) continue;
    const box = boxOf(scene, view, i);
    const inside = x >= box.left - 2 && x <= box.left + box.width + 2 && y >= box.top;
    if (inside && (found < 0 || levelOf(scene, i) >= levelOf(scene, found))) found = i;
  }
  return found;
}

// Black or white, whichever is easier to read on a colour (WCAG's relative luminance).
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) > 0.179 ? "#111111" : "#ffffff";
}

// A distance between ticks of about `wanted`: 1, 2 or 5 times a power of ten.
function tickStep(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * [1, 2, 5, 10].find((m) => m * power >= wanted);
}

function paintAxis(context, scene, view) {
  const { theme } = scene;
  context.clearRect(0, 0, view.width, 34);
  context.font = "12px 'Source Sans', sans-serif";
  context.fillStyle = theme.muted;
  const base = baseStep(scene, view.from);
  context.fillText(`after step ${base.step} began`, 8, 28, LABEL_PX - 12);
  const step = tickStep(((view.to - view.from) / Math.max(1, view.width - LABEL_PX)) * 110);
  context.save();
  context.beginPath();
  context.rect(LABEL_PX, 0, view.width - LABEL_PX, 34);
  context.clip();
  for (let k = Math.ceil((view.from - base.start) / step); base.start + k * step <= view.to; k++) {
    const x = xOf(view, base.start + k * step);
    context.fillRect(x, 30, 1, 4);
    context.fillText(k === 0 ? "0" : durationText(k * step), x + 3, 28);
  }
  context.fillStyle = theme.text;
  let free = 0;
  for (const mark of marksOf(scene, view)) {
    const text = scene.attempts > 1 ? `step ${mark.step} (attempt ${mark.attempt})` : `step ${mark.step}`;
    context.fillRect(mark.x, 2, 1, 32);
    if (mark.x < free) continue;
    context.fillText(text, mark.x + 4, 13);
    free = mark.x + 10 + context.measureText(text).width;
  }
  context.restore();
}

// The step that began last before a moment, or the first.
function baseStep(scene, time) {
  let found = scene.sections[0];
  for (const section of scene.sections) if (section[2] <= time && section[2] >= found[2]) found = section;
  return { step: found[1], start: found[2] };
}

function marksOf(scene, view) {
  return scene.sections
    .map(([attempt, step, start]) => ({ attempt, step, x: Math.round(xOf(view, start)) }))
    .filter(({ x }) => x >= LABEL_PX - 1 && x <= view.width)
    .sort((a, b) => a.x - b.x);
}

function paint(context, scene, view) {
  context.clearRect(0, 0, view.width, view.height);
  const first = Math.max(0, Math.floor(view.scroll / view.row));
  const last = Math.min(scene.lanes.length, Math.ceil((view.scroll + view.height) / view.row));
  paintRows(context, scene, view, first, last);
  context.save();
  context.beginPath();
  context.rect(LABEL_PX, 0, view.width - LABEL_PX, view.height);
  context.clip();
  paintBubbles(context, scene, view);
  context.fillStyle = scene.theme.grid;
  for (const mark of marksOf(scene, view)) context.fillRect(mark.x, 0, 1, view.height);
  for (let lane = first; lane < last; lane++) paintLane(context, scene, view, scene.lanes[lane]);
  paintArrows(context, scene, view);
  paintChosen(context, scene, view);
  context.restore();
}

// The ground of the lanes: a line between ranks, the colour of a rank's state, the chosen rank.
function paintRows(context, scene, view, first, last) {
  for (let i = first; i < last; i++) {
    const { rank } = scene.lanes[i];
    const top = topOf(view, i);
    const look = scene.looks[scene.states[rank]];
    if (rank === view.rank) ground(context, scene.theme.text, 0.09, [0, top, view.width, view.row]);
    if (look) {
      ground(context, look[2], 0.13, [0, top, view.width, view.row]);
      ground(context, look[2], 1, [0, top, 4, view.row]);
    }
    if (i === 0 || scene.lanes[i - 1].rank !== rank) ground(context, scene.theme.grid, 1, [0, top, view.width, 1]);
  }
  ground(context, scene.theme.grid, 1, [LABEL_PX - 1, 0, 1, view.height]);
}

function ground(context, colour, alpha, box) {
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  context.fillRect(...box);
  context.globalAlpha = 1;
}

function paintBubbles(context, scene, view) {
  const pattern = hatching(context, scene.theme.muted, 6);
  for (let k = 0; k < scene.bubble_lane.length; k++) {
    const [start, length] = [scene.bubble_start[k], scene.bubble_length[k]];
    if (start > view.to || start + length < view.from) continue;
    const lane = scene.bubble_lane[k];
    let below = lane;
    while (below < scene.lanes.length && scene.lanes[below].rank === scene.lanes[lane].rank) below++;
    const box = [xOf(view, start), topOf(view, lane) + 1, xOf(view, start + length) - xOf(view, start), (below - lane) * view.row - 2];
    if (box[1] > view.height || box[1] + box[3] < 0 || box[2] < 1) continue;
    ground(context, scene.theme.missing, 0.28, box);
    context.globalAlpha = 0.5;
    context.fillStyle = pattern;
    context.fillRect(...box);
    context.globalAlpha = 1;
  }
}

const tiles = new Map();

// Thin slanted lines, as a fill.
function hatching(context, colour, size) {
  const key = `${colour} ${size}`;
  if (!tiles.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour;
    pen.beginPath();
    for (const offset of [-size, 0, size]) {
      pen.moveTo(offset, size);
      pen.lineTo(offset + size, 0);
    }
    pen.stroke();
    tiles.set(key, tile);
  }
  return context.createPattern(tiles.get(key), "repeat");
}

function paintLane(context, scene, view, lane) {
  const painted = [0, 0, 0]; // up to where each level is full, so that spans below a pixel are drawn once
  for (let level = 0; level < LEVEL_SHARE.length; level++)
    for (let i = lane.first; i < lane.last && scene.start[i] <= view.to; i++) {
      if (levelOf(scene, i) !== level || !isVisible(scene, view, i)) continue;
      const box = boxOf(scene, view, i);
      if (box.left + box.width <= painted[level]) continue;
      painted[level] = Math.ceil(box.left + box.width);
      paintSpan(context, scene, view, i, box);
    }
}

function paintSpan(context, scene, view, i, box) {
  const colour = scene.colours[categoryOf(scene, i)];
  const { left, top, width, height } = box;
  context.fillStyle = colour;
  context.fillRect(left, top, width, height);
  if (width > 3) ground(context, scene.theme.paper, 1, [left + width - 1, top, isEndless(scene, i) ? 0 : 1, height]);
  if (isOpen(scene, i)) paintOpen(context, scene, view, i, box);
  if (width < 28 || height < 9) return;
  const size = Math.min(12, Math.floor(height * 0.8));
  context.font = `${size}px 'Source Sans', sans-serif`;
  const text = textsOf(scene, i).find((words) => context.measureText(words).width + 6 <= width);
  if (!text) return;
  context.fillStyle = inkOn(colour);
  const alone = scene.lanes[scene.lane[i]].deepest === 0;
  context.fillText(text, left + 3, top + (alone ? height / 2 + size * 0.36 : Math.min(height - 2, size)));
}

// What may stand on a span, the longest first.
function textsOf(scene, i) {
  const phase = phaseOf(scene, i);
  return isOpen(scene, i) ? [`${phase} · open for at least ${durationText(scene.duration[i])}`, `${phase} · open`, phase] : [phase];
}

// What has not ended: hatched, up to the edge with a tip, framed in the colour of its rank's state.
function paintOpen(context, scene, view, i, { left, top, width, height }) {
  context.globalAlpha = 0.45;
  context.fillStyle = hatching(context, "#ffffff", 7);
  context.fillRect(left, top, width, height);
  context.globalAlpha = 1;
  const look = scene.looks[scene.states[rankOf(scene, i)]];
  if (look) {
    context.strokeStyle = look[2];
    context.lineWidth = 2;
    context.strokeRect(left + 1, top + 1, width + (isEndless(scene, i) ? 4 : -2), height - 2);
  }
  if (!isEndless(scene, i)) return;
  context.fillStyle = scene.theme.text;
  context.beginPath();
  context.moveTo(view.width - 9, top + 1);
  context.lineTo(view.width - 1, top + height / 2);
  context.lineTo(view.width - 9, top + height - 1);
  context.fill();
}

function paintArrows(context, scene, view) {
  const shown = [];
  for (let k = 0; k < scene.send.length; k++)
    if (isArrowVisible(scene, view, scene.send[k], scene.recv[k])) shown.push([scene.send[k], scene.recv[k]]);
  const ofRank = shown.filter((pair) => pair.some((i) => rankOf(scene, i) === view.rank));
  const alpha = Math.max(0.18, Math.min(0.55, 60 / shown.length));
  for (const [from, to] of shown.length > MOST_ARROWS ? ofRank : shown) arrow(context, scene, view, from, to, alpha);
}

function isArrowVisible(scene, view, from, to) {
  const tops = [from, to].map((i) => topOf(view, scene.lane[i]));
  const [begins, ends] = [scene.start[from], isEndless(scene, to) ? scene.start[to] : scene.end[to]];
  return (
    Math.max(begins, ends) >= view.from && Math.min(begins, ends) <= view.to &&
    Math.max(...tops) >= 0 && Math.min(...tops) <= view.height
  );
}

// From the begin of one span to the end of another. A bar at the head shows how far the clocks may be off.
function arrow(context, scene, view, from, to, alpha) {
  const y = (i) => topOf(view, scene.lane[i]) + view.row / 2;
  const ends = isEndless(scene, to) ? scene.start[to] : scene.end[to];
  const [x1, y1, x2, y2] = [xOf(view, scene.start[from]), y(from), xOf(view, ends), y(to)];
  const error = errorBetween(scene, from, to);
  context.globalAlpha = alpha;
  context.strokeStyle = context.fillStyle = scene.theme.text;
  context.lineWidth = alpha === 1 ? 1.6 : 1;
  context.setLineDash(error === null ? [4, 3] : []);
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
  context.setLineDash([]);
  const turn = Math.atan2(y2 - y1, x2 - x1);
  context.beginPath();
  context.moveTo(x2, y2);
  for (const side of [-0.45, 0.45]) context.lineTo(x2 - 7 * Math.cos(turn + side), y2 - 7 * Math.sin(turn + side));
  context.fill();
  const half = error ? xOf(view, view.from + error) - LABEL_PX : 0;
  if (half >= 2) {
    context.fillRect(x2 - half, y2 - 0.5, 2 * half, 1);
    for (const x of [x2 - half, x2 + half]) context.fillRect(x - 0.5, y2 - 4, 1, 8);
  }
  context.globalAlpha = 1;
}

// The chosen span, the other members of its collective, and what hangs on it.
function paintChosen(context, scene, view) {
  if (view.hover >= 0 && view.hover !== view.chosen) frameOf(context, scene, view, view.hover, 1);
  if (view.chosen < 0) return;
  for (const member of membersOf(scene, view.chosen)) if (member !== view.chosen) frameOf(context, scene, view, member, 1);
  for (const [from, to] of arrowsOf(scene, view.chosen)) arrow(context, scene, view, from, to, 1);
  frameOf(context, scene, view, view.chosen, 2.5);
}

function frameOf(context, scene, view, i, width) {
  const box = boxOf(scene, view, i);
  context.strokeStyle = scene.theme.text;
  context.lineWidth = width;
  context.strokeRect(box.left - 1, box.top - 1, box.width + 2, box.height + 2);
}
