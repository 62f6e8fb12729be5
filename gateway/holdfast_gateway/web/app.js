// The page: which session, its stream, its terminal, and the bar above it.

import * as api from './api.js';
import { Screen } from './terminal.js';
import { State, Stream } from './stream.js';
import * as themes from './themes.js';
import { KeyRow, scrollByTouch } from './touch.js';
import * as view from './view.js';

const byId = (id) => document.getElementById(id);
const LIST_EVERY_MS = 3000;
// Half a second of trouble is not worth a word: a restarted sidecar is back by then.
const QUIET_MS = 500;
// What a session says it does when it takes no input.
const BUSY = { moving: 'Moving to another node…', saving: 'Being stored…' };

const world = {
  WebSocket,
  setTimeout: (act, ms) => setTimeout(act, ms),
  clearTimeout: (timer) => clearTimeout(timer),
  now: () => Date.now(),
  random: () => crypto.randomUUID(),
};
const toText = new TextDecoder();
const toBytes = new TextEncoder();

// Colours

const theme = () => document.documentElement.dataset.theme;

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').querySelector('use').setAttribute('href', name === 'dark' ? '#i-sun' : '#i-moon');
  document.querySelector('meta[name=theme-color]').content = name === 'dark' ? '#121a1f' : '#f3f1ec';
  screen.setTheme(themes[name]);
}

function followSystemTheme() {
  const light = matchMedia('(prefers-color-scheme: light)');
  light.addEventListener('change', () => {
    if (localStorage.getItem('holdfast.theme') === null) setTheme(light.matches ? 'light' : 'dark');
  });
}

// One session on the page

const screen = new Screen(byId('terminal'), {
  input: (bytes, idle) => current?.type(bytes, idle),
  behind: () => current?.stream.fallBehind(),
  caughtUp: () => current?.stream.caughtUp(),
}, themes[theme()]);

const keys = new KeyRow(byId('keys'), {
  send: (text) => current?.send(toBytes.encode(text)),
  application: () => screen.terminal.modes.applicationCursorKeysMode,
});

let current = null; // the Attachment shown, if any
let known = []; // the last list of sessions

class Attachment {
  #name;
  #mode;
  #self = null;
  #lead = null;
  #title = '';
  #state = null;
  #countdown = 0;

  constructor(name, mode) {
    this.#name = name;
    this.#mode = mode;
    const options = {
      ...api.streamAddress(name),
      mode,
      size: () => screen.measure(),
      probe: () => api.verdict(name),
    };
    this.stream = new Stream(options, {
      state: (state, until) => this.#link(state, until),
      attached: (body) => this.#attached(body),
      snapshot: (part) => screen.snapshot(part),
      output: (bytes) => screen.write(bytes),
      resize: (size) => screen.resizeTo(size),
      news: (body) => this.#news(body),
      error: (error) => this.#complain(error),
    }, world);
  }

  get name() {
    return this.#name;
  }

  start() {
    screen.clear();
    screen.setReadOnly(this.#mode === 'view');
    view.showTerminal();
    view.showClients([], null);
    view.hideActivity();
    this.showName();
    this.stream.start();
  }

  stop() {
    clearInterval(this.#countdown);
    view.showNotice(null);
    view.hideToast();
    this.stream.stop();
  }

  showName() {
    view.showName(this.#name, this.#title, known.length > 1);
  }

  /** What the terminal hears: keys, pastes, mouse, and idle reports that only the lead sends. */
  type(bytes, idle) {
    if (idle && this.#lead !== this.#self) return;
    const { ctrl, alt } = keys.held;
    this.send(ctrl || alt ? toBytes.encode(keys.modify(toText.decode(bytes))) : bytes);
  }

  send(bytes) {
    if (this.#mode === 'view' || this.stream.state === State.ended) return;
    screen.terminal.scrollToBottom();
    if (!this.stream.send(bytes)) view.showToast('Not sent: too much is waiting for the connection.');
  }

  #attached(body) {
    this.#self = body.client;
    this.#title = body.title ?? '';
    // Not its size: that comes with the snapshot, or where it changed in the resumed stream.
    this.showName();
    this.#showClients(body.clients ?? [], body.lead);
    this.#showState(body.state);
  }

  #news(body) {
    if (body.kind === 'clients') this.#showClients(body.clients ?? [], body.lead);
    else if (body.kind === 'state') this.#showState(body.state ?? body);
    else if (body.kind === 'ended') this.#showState({ activity: 'ended', exit: body.exit });
    else if (Object.hasOwn(BUSY, body.kind)) view.showNotice({ text: BUSY[body.kind], spin: true });
    else if (body.kind === 'stayed') view.showNotice(null);
    else if (body.kind === 'title') {
      this.#title = body.title ?? '';
      this.showName();
    }
  }

  #showClients(clients, lead) {
    this.#lead = lead ?? null;
    const marked = clients.map((client) => ({ ...client, lead: client.client === lead }));
    view.showClients(marked, this.#self);
  }

  #showState(state) {
    if (!state) return;
    this.#state = state;
    view.showActivity(state);
    if (state.activity === 'ended') this.#showEnd();
  }

  #showEnd() {
    clearInterval(this.#countdown);
    byId('app').dataset.link = 'up';
    view.showConnection(State.ended);
    screen.setReadOnly(true);
    const text = view.endingSentence(this.#state?.exit);
    view.showNotice({ text, low: true, action: { label: 'All sessions', act: choose } });
  }

  #link(state, until) {
    clearInterval(this.#countdown);
    view.showConnection(state);
    if (state === State.connected) {
      byId('app').dataset.link = 'up';
      view.showNotice(null);
    } else if (state === State.waiting) {
      this.#countdown = setInterval(() => this.#showTrouble(until), 250);
      if (until - Date.now() > QUIET_MS) this.#showTrouble(until);
    } else if (state === State.connecting && byId('app').dataset.link === 'down') {
      this.#showTrouble(0);
    } else if (state === State.ended) this.#ended();
    else if (state === State.refused) showRefused();
    else if (state === State.gone) showGone(this.#name);
  }

  // Stays through the attempts that fail; only success takes it away.
  #showTrouble(until) {
    byId('app').dataset.link = 'down';
    const seconds = Math.ceil((until - Date.now()) / 1000);
    const next = seconds > 0 ? `Trying again in ${seconds} s` : 'Reconnecting…';
    const action = { label: 'Try now', act: () => this.stream.tryNow() };
    view.showNotice({ text: `Connection lost. ${next}`, spin: true, action });
  }

  // Found ended on connecting, when nobody is left to tell how: the folder still knows.
  async #ended() {
    if (this.#state?.activity === 'ended') return this.#showEnd();
    const { state } = await api.info(this.#name).catch(() => ({ state: null }));
    this.#showState(state ?? { activity: 'ended', exit: null });
  }

  #complain(error) {
    const advice = error.advice ? ` ${capital(error.advice)}.` : '';
    const take = { label: 'Take the turn', act: () => this.#take() };
    view.showToast(`${capital(error.message)}.${advice}`, error.code === 'no_turn' ? take : null);
  }

  #take() {
    view.hideToast();
    this.stream.ask('take').catch((error) => this.#complain({ message: error.message }));
    screen.focus();
  }
}

const capital = (text) => {
  const shown = view.harmless(text, 200).replace(/\.$/, '');
  return shown.charAt(0).toUpperCase() + shown.slice(1);
};

// Whole pages

function showRefused() {
  leave();
  const has = api.token() !== '';
  view.showMessage({
    sign: 'key',
    alarm: has,
    title: has ? 'This link is no longer valid' : 'This page needs its link',
    text: has
      ? 'The gateway does not know the token this page came with. It may be from an earlier run. This prints a fresh link:'
      : 'The address holdfast prints carries a token after the #. This address alone opens nothing; to get the whole of it:',
    code: 'holdfast url',
  });
}

function showGone(name) {
  leave();
  view.showMessage({
    title: 'No such session',
    text: `There is no session named “${view.harmless(name, 63)}” here. It may have been removed.`,
    action: { label: 'All sessions', act: choose },
  });
}

function showEmpty() {
  view.showMessage({
    title: 'No sessions yet',
    text: 'Start one in a terminal. It appears here by itself, and goes on when you close this page.',
    code: 'holdfast run -- bash',
  });
}

function showAway() {
  view.showMessage({
    title: 'The gateway does not answer',
    text: 'Your sessions go on without it. This page tries again every few seconds.',
  });
}

// Which session

function leave() {
  current?.stop();
  current = null;
  choosing = false;
  byId('app').dataset.link = 'none';
  view.showName('holdfast', '', false);
  view.showClients([], null);
  view.hideActivity();
  view.showConnection(State.stopped);
  view.hideMenu();
}

function open(name, mode = 'write') {
  view.hideMenu();
  if (current?.name === name && current.stream.state !== State.stopped) return screen.focus();
  current?.stop();
  choosing = false;
  api.rememberSession(name, mode);
  current = new Attachment(name, mode);
  current.start();
  if (!matchMedia('(pointer: coarse)').matches) screen.focus();
  return undefined;
}

/** The page of all sessions. */
function choose() {
  leave();
  api.forgetSession();
  choosing = true;
  list(false);
}

let choosing = false; // whether the list is what the page shows, or a message or a session
let lister = 0;

// The list is looked at again and again: it is the page's content, or tells whether there is
// another session to pick. A single one opens by itself when the page comes up, not when a person
// asked for the list.
async function list(openSingle) {
  clearTimeout(lister);
  try {
    known = await api.sessions();
    if (choosing) showList(openSingle);
    current?.showName();
  } catch (error) {
    if (error.status === 401) return showRefused();
    if (choosing) showAway();
  }
  clearTimeout(lister); // another call may have been faster
  lister = setTimeout(() => list(openSingle && known.length === 0), LIST_EVERY_MS);
  return undefined;
}

function showList(openSingle) {
  if (known.length === 0) showEmpty();
  else if (openSingle && known.length === 1) open(known[0].session);
  else view.showSessions(known, open);
}

async function toggleMenu() {
  if (!byId('menu').hidden) return view.hideMenu();
  known = await api.sessions().catch(() => known);
  return view.showMenu(known, current?.name, open);
}

// The window

let measured = '';
let settle = 0;

function windowChanged() {
  const { height, offsetTop } = window.visualViewport ?? { height: innerHeight, offsetTop: 0 };
  document.documentElement.style.setProperty('--visible-height', `${height}px`);
  document.documentElement.style.setProperty('--visible-top', `${offsetTop}px`);
  clearTimeout(settle);
  settle = setTimeout(() => {
    const size = screen.measure();
    const text = `${size.columns}x${size.rows}`;
    if (text === measured) return;
    measured = text;
    current?.stream.resize(size);
  }, 80);
}

function listen() {
  byId('home').addEventListener('click', choose);
  byId('picker').addEventListener('click', toggleMenu);
  // A session smaller than the window leaves room beside it; a tap there means the session too.
  byId('terminal').addEventListener('click', () => screen.focus());
  byId('theme').addEventListener('click', () => {
    const next = theme() === 'dark' ? 'light' : 'dark';
    localStorage.setItem('holdfast.theme', next);
    setTheme(next);
  });
  document.addEventListener('pointerdown', ({ target }) => {
    if (!byId('menu').hidden && !target.closest('#menu, #picker')) view.hideMenu();
  });
  byId('menu').addEventListener('keydown', (event) => {
    const items = [...byId('menu').children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) items.at((items.indexOf(document.activeElement) + step) % items.length)?.focus();
    if (event.key === 'Escape') {
      view.hideMenu();
      screen.focus();
    }
  });
  new ResizeObserver(windowChanged).observe(byId('terminal'));
  window.visualViewport?.addEventListener('resize', windowChanged);
  window.visualViewport?.addEventListener('scroll', windowChanged);
  window.addEventListener('online', () => current?.stream.tryNow());
  document.addEventListener('visibilitychange', () => document.hidden || current?.stream.tryNow());
  window.addEventListener('hashchange', begin);
  scrollByTouch(byId('terminal'), screen.terminal);
}

function begin() {
  const { session, mode } = api.takeFragment();
  if (api.token() === '') return showRefused();
  if (session) {
    current?.stop();
    current = null;
    open(session, mode);
  }
  choosing = !session && current === null;
  return list(choosing);
}

setTheme(theme());
leave();
followSystemTheme();
listen();
begin();

// For a curious person at the console.
globalThis.holdfast = Object.freeze({ terminal: screen.terminal, link: () => current?.stream.state });
