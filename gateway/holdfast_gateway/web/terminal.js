// The terminal on the page: xterm.js, sized like the session, drawn to fit the window.

import { FitAddon } from './vendor/addon-fit.mjs';
import { WebLinksAddon } from './vendor/addon-web-links.mjs';
import { Terminal } from './vendor/xterm.mjs';
import { provider } from './widths.js';

// More than this waiting to be drawn is some tenths of a second of work: see Stream.fallBehind.
const BEHIND_BYTES = 2 << 20;
const CAUGHT_UP_BYTES = 1 << 16;

const FONT_PIXELS = { fine: 14, coarse: 13 };
// Below this letters are dust, on a phone's dense screen a little later; a session that is larger
// still is scrolled.
const SMALLEST_FONT_PIXELS = { fine: 7, coarse: 5 };
// xterm.js keeps this much to the right of the cells for its scroll bar.
const SCROLLBAR_PIXELS = 14;
const FONTS = [
  'ui-monospace', '"SF Mono"', '"JetBrains Mono"', '"Cascadia Code"', 'Menlo', 'Consolas',
  '"Liberation Mono"', '"DejaVu Sans Mono"', '"Noto Color Emoji"', 'monospace',
].join(', ');

const textBytes = new TextEncoder();

// Focus reports and the mouse moving with no button down are not something a person says; sent by
// everybody who looks, they would make every onlooker the lead. Only the lead's go out.
const IDLE = /^\x1b\[(?:[IO]|<3[59];\d+;\d+M)$/;

export class Screen {
  #terminal;
  #fit = new FitAddon();
  #box;
  #on;
  #pending = 0;
  #behind = false;
  #pointer = matchMedia('(pointer: coarse)').matches ? 'coarse' : 'fine';
  #base = FONT_PIXELS[this.#pointer];

  /** box: the element it fills. on: {input(bytes, idle), behind(), caughtUp()} */
  constructor(box, on, theme) {
    this.#box = box;
    this.#on = on;
    this.#terminal = new Terminal({
      allowProposedApi: true, // the width table below
      cursorBlink: true,
      cursorInactiveStyle: 'outline',
      drawBoldTextInBrightColors: false,
      fontFamily: FONTS,
      fontSize: this.#base,
      lineHeight: 1.15,
      macOptionIsMeta: true,
      minimumContrastRatio: 2, // text in the background's own colour can still be found
      scrollback: 10000,
      theme,
    });
    this.#open();
    this.#terminal.onData((text) => on.input(textBytes.encode(text), IDLE.test(text)));
    // Old mouse reports are bytes, not text.
    this.#terminal.onBinary((text) =>
      on.input(Uint8Array.from(text, (c) => c.charCodeAt(0)), false));
  }

  get terminal() {
    return this.#terminal;
  }

  get size() {
    return { columns: this.#terminal.cols, rows: this.#terminal.rows };
  }

  focus() {
    this.#terminal.focus();
  }

  blur() {
    this.#terminal.blur();
  }

  setTheme(theme) {
    this.#terminal.options.theme = theme;
  }

  setReadOnly(readOnly) {
    this.#terminal.options.disableStdin = readOnly;
    this.#terminal.options.cursorBlink = !readOnly;
  }

  // What the session sends

  write(bytes) {
    this.#pending += bytes.length;
    if (this.#pending > BEHIND_BYTES) {
      this.#behind = true;
      this.#on.behind();
    }
    // The bytes are a view of the message; xterm.js reads them later, and nobody changes them.
    this.#terminal.write(bytes, () => {
      this.#pending -= bytes.length;
      if (this.#behind && this.#pending < CAUGHT_UP_BYTES) {
        this.#behind = false;
        this.#on.caughtUp();
      }
    });
  }

  /** Everything written before is drawn first: a reset or resize has its place in the stream. */
  inOrder(act) {
    this.#terminal.write('', act);
  }

  snapshot({ columns, rows, first, data }) {
    if (first) {
      this.inOrder(() => {
        this.#terminal.reset();
        this.#resize(columns, rows);
      });
    }
    this.write(data);
  }

  resizeTo({ columns, rows }) {
    this.inOrder(() => this.#resize(columns, rows));
  }

  clear() {
    this.inOrder(() => this.#terminal.reset());
  }

  // Sizes

  /** How many columns and rows this window has room for, at the usual font size. */
  measure() {
    this.#terminal.options.fontSize = this.#base;
    const { cols = 80, rows = 24 } = this.#fit.proposeDimensions() ?? {};
    this.#shrinkToFit();
    return { columns: clamp(cols, 2, 1000), rows: clamp(rows, 1, 1000) };
  }

  #resize(columns, rows) {
    if (columns === this.#terminal.cols && rows === this.#terminal.rows) return;
    this.#terminal.resize(clamp(columns, 2, 1000), clamp(rows, 1, 1000));
    this.#terminal.options.fontSize = this.#base;
    this.#shrinkToFit();
  }

  // A session larger than this window is drawn smaller, and scrolled when it would be too small.
  #shrinkToFit() {
    const drawn = this.#terminal.element?.querySelector('.xterm-screen');
    if (!drawn) return;
    const room = this.#room();
    const smallest = SMALLEST_FONT_PIXELS[this.#pointer];
    for (let round = 0; round < 4; round++) {
      const { width, height } = drawn.getBoundingClientRect();
      const ratio = Math.min(room.width / width, room.height / height);
      const now = this.#terminal.options.fontSize;
      if (!(ratio < 1) || now <= smallest) break;
      // Half pixels: cells are rounded to device pixels, so finer steps change nothing.
      const next = Math.min(Math.floor(now * ratio * 2) / 2, now - 0.5);
      this.#terminal.options.fontSize = Math.max(next, smallest);
    }
    this.#frame(drawn, room);
  }

  // What the box leaves for cells.
  #room() {
    const style = getComputedStyle(this.#terminal.element);
    const padding = (side) => parseFloat(style.getPropertyValue(`padding-${side}`));
    return {
      width: this.#box.clientWidth - padding('left') - padding('right') - SCROLLBAR_PIXELS,
      height: this.#box.clientHeight - padding('top') - padding('bottom'),
    };
  }

  // A session that does not fill the window gets a quiet edge, so that one sees where it ends; one
  // that does not fit gets all the space it needs, and the box scrolls.
  #frame(drawn, room) {
    const { width, height } = drawn.getBoundingClientRect();
    const cell = { width: width / this.#terminal.cols, height: height / this.#terminal.rows };
    const over = width > room.width + 1 || height > room.height + 1;
    const under = room.width - width > 2 * cell.width || room.height - height > 2 * cell.height;
    this.#box.classList.toggle('framed', under && !over);
    const { style } = this.#terminal.element;
    style.width = over || under ? `${Math.ceil(width) + SCROLLBAR_PIXELS}px` : '';
    style.height = over || under ? `${Math.ceil(height)}px` : '';
    style.boxSizing = over || under ? 'content-box' : '';
  }

  // Setting up

  #open() {
    const terminal = this.#terminal;
    terminal.loadAddon(this.#fit);
    terminal.loadAddon(new WebLinksAddon((event, uri) => window.open(uri, '_blank', 'noopener')));
    terminal.unicode.register(provider);
    terminal.unicode.activeVersion = provider.version;
    terminal.open(this.#box);
    terminal.textarea?.setAttribute('aria-label', 'Terminal input');
    terminal.textarea?.setAttribute('enterkeyhint', 'enter');
    this.#keepSilent();
    this.#clipboardKeys();
  }

  // The sidecar answers what programs ask of the terminal. If every page answered too, a program
  // would read each answer several times, and a viewer would type. So questions are dropped here,
  // and with them the clipboard: a session may not write to it (OSC 52), nor read it.
  #keepSilent() {
    const { parser } = this.#terminal;
    const silent = () => true;
    const question = (data) => data.split(';').includes('?');
    for (const id of [
      { final: 'c' }, { prefix: '>', final: 'c' }, { prefix: '=', final: 'c' },
      { final: 'n' }, { prefix: '?', final: 'n' }, { final: 'x' },
      { intermediates: '$', final: 'p' }, { prefix: '?', intermediates: '$', final: 'p' },
      { prefix: '>', final: 'q' }, { prefix: '?', final: 'u' },
    ]) parser.registerCsiHandler(id, silent);
    parser.registerDcsHandler({ intermediates: '$', final: 'q' }, silent);
    parser.registerDcsHandler({ intermediates: '+', final: 'q' }, silent);
    for (const colour of [4, 5, 10, 11, 12, 13, 14, 17, 19]) {
      parser.registerOscHandler(colour, question);
    }
    parser.registerOscHandler(52, silent);
  }

  // Ctrl+C belongs to the program. Copy and paste are where terminals have them: with Shift.
  #clipboardKeys() {
    this.#terminal.attachCustomKeyEventHandler((event) => {
      if (!event.ctrlKey || !event.shiftKey || event.altKey || event.metaKey) return true;
      if (event.code === 'KeyC') {
        if (event.type === 'keydown' && this.#terminal.hasSelection()) {
          navigator.clipboard?.writeText(this.#terminal.getSelection()).catch(() => {});
        }
        event.preventDefault();
        return false;
      }
      return event.code !== 'KeyV'; // the browser pastes, and xterm.js takes it from there
    });
  }
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
