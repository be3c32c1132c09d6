// Reads the bytes that models/timeline/payload.py writes. All times are ns since the header's origin.

const SIGNED = ["start", "seq", "send", "recv"];

function readPayload(bytes) {
  const digest = digestOf(bytes);
  const size = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getUint32(16, true);
  const scene = JSON.parse(new TextDecoder().decode(bytes.subarray(20, 20 + size)));
  let at = 20 + size;
  for (const [name, count] of scene.columns) {
    const values = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      let value = 0, scale = 1, byte;
      do {
        if (at >= bytes.length) throw new Error(`the column ${name} is cut off`);
        byte = bytes[at++];
        value += (byte & 127) * scale;
        scale *= 128;
      } while (byte > 127);
      values[i] = SIGNED.includes(name) ? (value % 2 ? -(value + 1) / 2 : value / 2) : value;
    }
    scene[name] = values;
  }
  return completed(Object.assign(scene, { digest }));
}

function digestOf(bytes) {
  if (!bytes || bytes.length < 20) throw new Error("no data came");
  return new TextDecoder().decode(bytes.subarray(0, 16));
}

// Adds up what was sent as differences, and looks up what was sent as numbers.
function completed(scene) {
  const count = scene.start.length;
  scene.end = new Float64Array(count);
  scene.lane = new Uint16Array(count);
  scene.lanes = scene.lanes.map(([rank, label, node, first, last]) => ({ rank, label, node, first, last }));
  scene.lanes.forEach((lane, number) => {
    for (let i = lane.first; i < lane.last; i++) {
      if (i > lane.first) scene.start[i] += scene.start[i - 1];
      scene.lane[i] = number;
      lane.deepest = Math.max(lane.deepest || 0, levelOf(scene, i));
    }
  });
  addUp(scene.seq);
  addUp(scene.send);
  for (let i = 0; i < scene.recv.length; i++) scene.recv[i] += scene.send[i];
  for (let i = 0; i < count; i++) scene.end[i] = scene.start[i] + scene.duration[i];
  const attempts = scene.sections.map(([attempt]) => attempt);
  scene.newest = Math.max(...attempts);
  scene.attempts = new Set(attempts).size;
  return scene;
}

function addUp(values) {
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
}

const isOpen = (scene, i) => scene.look[i] % 2 === 1;
const levelOf = (scene, i) => Math.floor(scene.look[i] / 2);
const phaseOf = (scene, i) => scene.kinds[scene.kind[i]][0];
const categoryOf = (scene, i) => scene.kinds[scene.kind[i]][1];
const groupOf = (scene, i) => scene.groups[scene.group[i]];
const stepOf = (scene, i) => ({ attempt: scene.sections[scene.section[i]][0], step: scene.sections[scene.section[i]][1] });
const rankOf = (scene, i) => scene.lanes[scene.lane[i]].rank;

// The spans of the collective that span i is part of, the first to arrive first. Only itself for other spans.
function membersOf(scene, i) {
  if (!groupOf(scene, i) || scene.peer[i] > 0 || scene.seq[i] < 0) return [i];
  const attempt = stepOf(scene, i).attempt;
  const found = [];
  for (let k = 0; k < scene.start.length; k++) {
    const same = scene.group[k] === scene.group[i] && scene.seq[k] === scene.seq[i] && !(scene.peer[k] > 0);
    if (same && phaseOf(scene, k) === phaseOf(scene, i) && stepOf(scene, k).attempt === attempt) found.push(k);
  }
  return found.sort((a, b) => scene.start[a] - scene.start[b] || a - b);
}

// What is drawn from span to span: [from, to] at the moment that each is known by.
function arrowsOf(scene, i) {
  const arrows = [];
  for (let k = 0; k < scene.send.length; k++)
    if (scene.send[k] === i || scene.recv[k] === i) arrows.push([scene.send[k], scene.recv[k]]);
  const members = membersOf(scene, i);
  const last = members[members.length - 1];
  for (const member of members) if (member !== last) arrows.push([last, member]);
  return arrows;
}

// How far the times of two spans may be off beside each other: ns, null where it is not known.
function errorBetween(scene, a, b) {
  if (scene.node[a] === scene.node[b]) return 0;
  const [one, other] = [scene.nodes[scene.node[a]][1], scene.nodes[scene.node[b]][1]];
  return one === null || other === null ? null : one + other;
}
