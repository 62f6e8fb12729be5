// An independent judge of what a terminal shows: @xterm/headless. Speaks JSON lines on stdio.
//   {op: "new", id, columns, rows, scrollback}   {op: "write", id, base64}
//   {op: "resize", id, columns, rows}            {op: "dump", id, cells}   {op: "free", id}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

import { provider } from "../../gateway/holdfast_gateway/web/widths.js"; // as the page has it

const require = createRequire(process.argv[2]);
const { Terminal } = require("@xterm/headless");

const terminals = new Map();

function colour(cell, which) {
  if (cell[`is${which}Default`]()) return null;
  const value = cell[`get${which}Color`]();
  return (cell[`is${which}RGB`]() ? "#" : "p") + value.toString(16);
}

function attributes(cell) {
  const flags = ["isBold", "isItalic", "isDim", "isUnderline", "isBlink", "isInverse", "isInvisible",
    "isStrikethrough", "isOverline"];
  return [flags.map((f) => (cell[f]() ? 1 : 0)).join(""), colour(cell, "Fg"), colour(cell, "Bg")];
}

function line(buffer, y, columns, spare) {
  const row = buffer.getLine(y);
  const cells = [];
  for (let x = 0; x < columns; x++) {
    const cell = row.getCell(x, spare);
    const text = cell.getChars() || " ";
    const [flags, fg, bg] = attributes(cell);
    // A blank shows only its background: its other attributes are not visible.
    const blank = text === " " && !/[1]/.test(flags[3] + flags[5] + flags[7] + flags[8]);
    cells.push(blank ? [" ", cell.getWidth() || 0, bg] : [text, cell.getWidth(), flags, fg, bg]);
  }
  let end = cells.length;
  while (end > 0 && cells[end - 1][0] === " " && cells[end - 1].length === 3
    && cells[end - 1][2] === null) end--;
  return { cells: cells.slice(0, end), wrapped: row.isWrapped };
}

function dumpBuffer(terminal, buffer) {
  const spare = buffer.getNullCell();
  const lines = [];
  for (let y = 0; y < buffer.length; y++) lines.push(line(buffer, y, terminal.cols, spare));
  lines[0].wrapped = false; // whatever it goes on from has been dropped
  return { lines, base: buffer.baseY };
}

function dump(terminal, title) {
  const { active, normal, alternate } = terminal.buffer;
  const modes = Object.fromEntries(Object.keys(Object.getPrototypeOf(terminal.modes))
    .concat(Object.keys(terminal.modes)).map((k) => [k, terminal.modes[k]]));
  const core = terminal._core;
  return {
    type: active.type, cursor: [active.cursorX, active.cursorY], modes, title,
    keypad: core.coreService.decPrivateModes.applicationKeypad,
    hidden: core.coreService.isCursorHidden,
    normal: dumpBuffer(terminal, normal),
    alternate: active.type === "alternate" ? dumpBuffer(terminal, alternate) : null,
    columns: terminal.cols, rows: terminal.rows,
    region: [core.buffers.active.scrollTop, core.buffers.active.scrollBottom],
  };
}

const operations = {
  new({ id, columns, rows, scrollback }) {
    const terminal = new Terminal({ cols: columns, rows, scrollback, allowProposedApi: true });
    terminal.unicode.register(provider);
    terminal.unicode.activeVersion = provider.version;
    const entry = { terminal, title: "" };
    terminal.onTitleChange((t) => { entry.title = t; });
    terminals.set(id, entry);
    return {};
  },
  async write({ id, base64 }) {
    const data = Buffer.from(base64, "base64");
    await new Promise((done) => terminals.get(id).terminal.write(data, done));
    return {};
  },
  resize({ id, columns, rows }) { terminals.get(id).terminal.resize(columns, rows); return {}; },
  dump({ id }) { const { terminal, title } = terminals.get(id); return dump(terminal, title); },
  free({ id }) { terminals.get(id).terminal.dispose(); terminals.delete(id); return {}; },
};

for await (const text of createInterface({ input: process.stdin })) {
  const request = JSON.parse(text);
  let answer;
  try { answer = await operations[request.op](request); } catch (e) { answer = { error: String(e.stack) }; }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
