// Fingers: scrolling by drag, and a row of the keys that on-screen keyboards lack.

const FRICTION = 0.95; // per frame of 16 ms: a flick runs out in about a second
const REPEAT_AFTER_MS = 350;
const REPEAT_EVERY_MS = 60;

/** Dragging scrolls: the scrollback where there is one, else what the wheel would do. */
export function scrollByTouch(box, terminal) {
  let last = null;
  let rest = 0;
  let speed = 0;
  let coasting = 0;

  const scroll = (pixels, x, y) => {
    // A session taller than the window: first to the window's own edge.
    const before = box.scrollTop;
    box.scrollTop += pixels;
    if (box.scrollTop !== before) return;
    const cell = (box.querySelector('.xterm-screen')?.clientHeight ?? 24) / terminal.rows;
    rest += pixels / cell;
    const lines = Math.trunc(rest);
    if (lines === 0) return;
    rest -= lines;
    if (terminal.buffer.active.type === 'normal' && terminal.modes.mouseTrackingMode === 'none') {
      terminal.scrollLines(lines);
      return;
    }
    // A full-screen program gets what a wheel would have sent it.
    const target = box.querySelector('.xterm-screen');
    target?.dispatchEvent(new WheelEvent('wheel', {
      deltaY: lines * cell, clientX: x, clientY: y, bubbles: true, cancelable: true,
    }));
  };

  const coast = (x, y) => {
    speed *= FRICTION;
    if (Math.abs(speed) < 0.02) return;
    scroll(speed * 16, x, y);
    coasting = requestAnimationFrame(() => coast(x, y));
  };

  box.addEventListener('touchstart', (event) => {
    cancelAnimationFrame(coasting);
    speed = 0;
    rest = 0;
    const [finger] = event.touches;
    const alone = event.touches.length === 1;
    last = alone ? { x: finger.clientX, y: finger.clientY, at: event.timeStamp } : null;
  }, { passive: true });

  box.addEventListener('touchmove', (event) => {
    if (last === null || event.touches.length !== 1) return;
    const { clientX, clientY } = event.touches[0];
    const moved = last.y - clientY;
    const time = Math.max(event.timeStamp - last.at, 1);
    speed = 0.7 * speed + 0.3 * (moved / time);
    box.scrollLeft += last.x - clientX; // a session wider than the window
    last = { x: clientX, y: clientY, at: event.timeStamp };
    scroll(moved, clientX, clientY);
    if (event.cancelable) event.preventDefault();
  }, { passive: false });

  box.addEventListener('touchend', (event) => {
    if (last === null) return;
    last = null;
    const { clientX, clientY } = event.changedTouches[0];
    coast(clientX, clientY);
  }, { passive: true });
}

const ARROWS = { up: 'A', down: 'B', right: 'C', left: 'D', end: 'F', home: 'H' };
const PAGES = { pageup: 5, pagedown: 6 };

/** The bytes of a named key, as xterm would send them. Exported for its tests. */
export function keySequence(name, { ctrl = false, alt = false, application = false } = {}) {
  const modifier = 1 + (alt ? 2 : 0) + (ctrl ? 4 : 0);
  if (name in ARROWS) {
    if (modifier > 1) return `\x1b[1;${modifier}${ARROWS[name]}`;
    return (application ? '\x1bO' : '\x1b[') + ARROWS[name];
  }
  if (name in PAGES) return `\x1b[${PAGES[name]}${modifier > 1 ? `;${modifier}` : ''}~`;
  return withModifiers({ escape: '\x1b', tab: '\t' }[name] ?? name, { ctrl, alt });
}

/** Text typed while Ctrl or Alt is held down on the key row. */
export function withModifiers(text, { ctrl = false, alt = false } = {}) {
  let out = text;
  if (ctrl && text.length === 1) {
    const code = text.toUpperCase().charCodeAt(0);
    if (code >= 0x40 && code < 0x60) out = String.fromCharCode(code & 0x1f);
    else if (text === ' ') out = '\0';
    else if (text === '?') out = '\x7f';
    else if (text === '/') out = '\x1f';
  }
  return alt ? `\x1b${out}` : out;
}

/** The key row. A modifier tapped once holds for one key, tapped twice until tapped again. */
export class KeyRow {
  #buttons;
  #held = { ctrl: 'off', alt: 'off' };
  #send;
  #application;

  /** send: text → void; application: () => whether arrows are in application mode. */
  constructor(row, { send, application }) {
    this.#send = send;
    this.#application = application;
    this.#buttons = [...row.querySelectorAll('button')];
    for (const button of this.#buttons) this.#wire(button);
  }

  get held() {
    return { ctrl: this.#held.ctrl !== 'off', alt: this.#held.alt !== 'off' };
  }

  /** Typed text with the held modifiers; the ones held for one key let go. */
  modify(text) {
    const { ctrl, alt } = this.held;
    if (!ctrl && !alt) return text;
    this.#letGo();
    return withModifiers(text, { ctrl, alt });
  }

  #wire(button) {
    const { key, modifier } = button.dataset;
    let timer = 0;
    const press = () => (modifier ? this.#toggle(modifier) : this.#press(key));
    const repeat = () => {
      press();
      timer = setTimeout(repeat, REPEAT_EVERY_MS);
    };
    button.addEventListener('pointerdown', (event) => {
      event.preventDefault(); // the terminal keeps the focus, and so the keyboard stays up
      press();
      if (button.hasAttribute('data-repeat')) timer = setTimeout(repeat, REPEAT_AFTER_MS);
    });
    for (const end of ['pointerup', 'pointerleave', 'pointercancel']) {
      button.addEventListener(end, () => clearTimeout(timer));
    }
    // A keyboard or a screen reader clicks without a pointer.
    button.addEventListener('click', (event) => event.detail === 0 && press());
  }

  #press(key) {
    const text = keySequence(key, { ...this.held, application: this.#application() });
    this.#letGo();
    this.#send(text);
  }

  #toggle(modifier) {
    const next = { off: 'once', once: 'locked', locked: 'off' };
    this.#held[modifier] = next[this.#held[modifier]];
    this.#show();
  }

  #letGo() {
    for (const [modifier, held] of Object.entries(this.#held)) {
      if (held === 'once') this.#held[modifier] = 'off';
    }
    this.#show();
  }

  #show() {
    for (const button of this.#buttons) {
      const held = this.#held[button.dataset.modifier];
      if (held === undefined) continue;
      button.setAttribute('aria-pressed', String(held !== 'off'));
      button.dataset.held = held;
    }
  }
}
