// Numbers and spans as a person reads them, as models/text.py says them.

function three(value) {
  return value.toFixed(Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0);
}

function durationText(ns) {
  const seconds = ns / 1e9;
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${two((seconds % 3600) / 60)} min`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  for (const [unit, scale] of [["s", 1], ["ms", 1e3], ["µs", 1e6]])
    if (Math.abs(seconds) * scale >= 1) return `${three(seconds * scale)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

function sizeText(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024) return unit === "B" ? `${bytes} B` : `${three(bytes)} ${unit}`;
    bytes /= 1024;
  }
  return `${three(bytes)} TiB`;
}

// The lines of a tooltip: what it is, where, how long, with whom.
function describe(scene, i) {
  const { attempt, step } = stepOf(scene, i);
  const lane = scene.lanes[scene.lane[i]];
  const open = isOpen(scene, i);
  const lines = [`${phaseOf(scene, i)} ${open ? "not ended, for at least " : ""}${durationText(scene.duration[i])}`];
  const microbatch = scene.microbatch[i] > 0 ? `, microbatch ${scene.microbatch[i] - 1}` : "";
  lines.push(`rank ${lane.rank} on ${scene.nodes[scene.node[i]][0]}, step ${step}${microbatch}, attempt ${attempt}`);
  if (scene.blocked[i] > 0 && !open) {
    const blocked = scene.blocked[i] - 1;
    lines.push(`own ${durationText(Math.max(0, scene.duration[i] - blocked))}, stood still ${durationText(blocked)}`);
  }
  if (groupOf(scene, i)) {
    const payload = scene.sizes[scene.size[i]] ? `, ${sizeText(scene.sizes[scene.size[i]])}` : "";
    const peer = scene.peer[i] > 0 ? `, with rank ${scene.peer[i] - 1}` : "";
    lines.push(`group ${groupOf(scene, i)}, seq ${scene.seq[i]}${payload}${peer}`);
  }
  const error = scene.nodes[scene.node[i]][1];
  if (scene.nodes.length > 1)
    lines.push(error === null ? "clock of its node not compared" : error ? `clock ± ${durationText(error)}` : "reference clock");
  return lines;
}

// The order in which the members of a collective came.
function arrivalText(scene, members) {
  if (members.length < 2) return "";
  const [first, last] = [members[0], members[members.length - 1]];
  const late = scene.start[last] - scene.start[first];
  const error = errorBetween(scene, first, last);
  const sure = error === null ? ", clocks not compared" : error ? ` ± ${durationText(error)}` : "";
  return `${members.length} members shown, rank ${rankOf(scene, last)} came last, ${durationText(late)}${sure} after rank ${rankOf(scene, first)}`;
}
