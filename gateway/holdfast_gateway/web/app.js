// The page: where it is (a session, or all of them), who is signed in, and the window around it.

import * as api from './api.js';
import { Attachment } from './attachment.js';
import * as credentials from './credentials.js';
import { byId, element, harmless, icon, shortName } from './dom.js';
import { SessionList } from './list.js';
import * as oidc from './oidc.js';
import { Panel } from './panel.js';
import * as route from './route.js';
import * as signin from './signin.js';
import { State } from './stream.js';
import { Screen } from './terminal.js';
import * as themes from './themes.js';
import { KeyRow, scrollByTouch } from './touch.js';
import * as view from './view.js';

const LIST_EVERY_MS = 3000;
const toText = new TextDecoder();
const toBytes = new TextEncoder();

let current = null; // the Attachment shown, if any
let known = []; // the last list of sessions
let ways = []; // how one may sign in here
let choosing = false; // whether the list is what the page shows, or a message or a session
let lister = 0;

// Colours

const theme = () => document.documentElement.dataset.theme;

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').querySelector('use').setAttribute('href', name === 'dark' ? '#i-sun' : '#i-moon');
  document.querySelector('meta[name=theme-color]').content = name === 'dark' ? '#121a1f' : '#f3f1ec';
  screen.setTheme(themes[name]);
}

function otherTheme() {
  const next = theme() === 'dark' ? 'light' : 'dark';
  localStorage.setItem('holdfast.theme', next);
  setTheme(next);
}

function followSystemTheme() {
  const light = matchMedia('(prefers-color-scheme: light)');
  light.addEventListener('change', () => {
    if (localStorage.getItem('holdfast.theme') === null) setTheme(light.matches ? 'light' : 'dark');
  });
}

// The parts

const screen = new Screen(byId('terminal'), {
  input: (bytes, idle) => typed(bytes, idle),
  behind: () => current?.stream.fallBehind(),
  caughtUp: () => current?.stream.caughtUp(),
}, themes[theme()]);

const keys = new KeyRow(byId('keys'), {
  send: (text) => current?.send(toBytes.encode(text)),
  application: () => screen.terminal.modes.applicationCursorKeysMode,
});

const panel = new Panel({
  heard: () => current?.stream.heard ?? 0,
  about: () => current?.about ?? {},
  changed: () => (current === null || panel.open || coarse() ? undefined : screen.focus()),
});

const list = new SessionList();
const coarse = () => matchMedia('(pointer: coarse)').matches;

/** What the terminal hears: keys, pastes, mouse, and idle reports. */
function typed(bytes, idle) {
  if (current === null || (idle && !current.leads)) return;
  const { ctrl, alt } = keys.held;
  current.send(ctrl || alt ? toBytes.encode(keys.modify(toText.decode(bytes))) : bytes);
}

// Signing in

const byLink = () => ways.some(({ kind }) => kind === 'link');

/** Nobody is signed in, or not any more. What was shown stays behind the dialog. */
function needSignIn(error) {
  clearTimeout(lister);
  if (byLink()) return showNeedsLink();
  const has = credentials.token() !== '';
  if (signin.shown()) return signin.complain(error);
  return signin.show(ways, has ? error : null, signedIn);
}

async function signedIn(token, kept) {
  credentials.take(token, { kept });
  try {
    known = await api.sessions();
  } catch (error) {
    if (error.code === 'unauthenticated') credentials.forget();
    return signin.complain(error);
  }
  signin.hide();
  showAccount();
  if (current?.stream.state === State.refused) current.stream.start();
  return begin(true);
}

function signOut() {
  credentials.forget();
  leave();
  known = [];
  history.replaceState(null, '', location.pathname + route.format(null));
  showAccount();
  needSignIn(null);
}

function showAccount() {
  byId('account').hidden = byLink() || credentials.token() === '';
}

function toggleAccount() {
  const menu = byId('account-menu');
  if (!menu.hidden) return view.hideMenus();
  const { name, until } = credentials.holder(credentials.token());
  const time = until && new Date(until).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });
  return view.openMenu(menu, byId('account'), [
    element('p', { class: 'who' }, 'Signed in as ', element('b', { title: harmless(name, 200) }, shortName(name)), time ? ` until ${time}` : ''),
    element('button', { type: 'button', role: 'menuitem', onclick: otherTheme }, icon('sun'), 'Other colours'),
    element('button', { type: 'button', role: 'menuitem', onclick: signOut }, icon('leave'), 'Sign out'),
  ]);
}

// Whole pages

function showNeedsLink() {
  leave();
  const has = credentials.token() !== '';
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

function showOver(message) {
  leave();
  const reload = { label: 'Reload', act: () => location.reload() };
  view.showMessage({ ...message, action: message.reload ? reload : { label: 'All sessions', act: choose } });
}

function showEmpty() {
  view.showMessage(byLink() ? {
    title: 'No sessions yet',
    text: 'Start one in a terminal. It appears here by itself, and goes on when you close this page.',
    code: 'holdfast run -- bash',
  } : {
    title: 'No sessions to see',
    text: 'There are none, or you may see none of them. One that you start appears here by itself:',
    code: 'kubectl holdfast run build --image debian',
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
  view.showName(null, '', false);
  view.showClients([], null);
  view.hideActivity();
  view.showConnection(State.stopped);
  view.hideMenus();
  panel.of(null);
}

const go = (session) => {
  view.hideMenus();
  if (route.same(session, current?.session ?? null)) screen.focus();
  else location.hash = route.format(session);
};

function open(session, mode) {
  view.hideMenus();
  if (route.same(session, current?.session ?? null) && current.stream.state !== State.stopped) return;
  current?.stop();
  choosing = false;
  current = new Attachment(session, mode, screen, {
    refused: needSignIn,
    over: showOver,
    named: () => current?.showName(known.length > 1),
    leave: choose,
  });
  current.start(known.length > 1);
  panel.of(session);
  if (!coarse()) screen.focus();
}

/** The page of all sessions. */
function choose() {
  if (route.parse(location.hash).session === null && choosing) return;
  leave();
  choosing = true;
  if (location.hash !== '#/') history.pushState(null, '', route.format(null));
  look(false);
}

// The list is looked at again and again: it is the page's content, or tells whether there is
// another session to pick. A single one opens by itself when the page comes up, not when a person
// asked for the list.
async function look(openSingle) {
  clearTimeout(lister);
  if (!document.hidden) {
    try {
      known = await api.sessions();
      if (choosing) showList(openSingle);
      current?.showName(known.length > 1);
    } catch (error) {
      if (error.status === 401) return needSignIn(error);
      if (choosing) showAway();
    }
  }
  clearTimeout(lister); // another call may have been faster
  lister = setTimeout(() => look(openSingle && known.length === 0), LIST_EVERY_MS);
  return undefined;
}

function showList(openSingle) {
  if (known.length === 0) return showEmpty();
  if (!openSingle || known.length > 1 || !byLink()) return list.show(known);
  const only = route.named(known[0]);
  history.replaceState(null, '', route.format(only));
  return open(only, 'write');
}

async function toggleMenu() {
  if (!byId('menu').hidden) return view.hideMenus();
  known = await api.sessions().catch(() => known);
  return view.showMenu(known, current?.session ?? null, go);
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

function menuKeys(event) {
  const items = [...event.currentTarget.querySelectorAll('button')];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) items.at((items.indexOf(document.activeElement) + step) % items.length)?.focus();
  if (event.key !== 'Escape') return;
  view.hideMenus();
  if (current) screen.focus();
}

function listen() {
  byId('home').addEventListener('click', choose);
  byId('picker').addEventListener('click', toggleMenu);
  byId('account').addEventListener('click', toggleAccount);
  // A session smaller than the window leaves room beside it; a tap there means the session too.
  byId('terminal').addEventListener('click', () => screen.focus());
  byId('theme').addEventListener('click', otherTheme);
  signin.holdOpen();
  document.addEventListener('pointerdown', ({ target }) => {
    if (!target.closest('.menu, [aria-haspopup="menu"]')) view.hideMenus();
  });
  for (const menu of document.querySelectorAll('.menu')) menu.addEventListener('keydown', menuKeys);
  new ResizeObserver(windowChanged).observe(byId('terminal'));
  window.visualViewport?.addEventListener('resize', windowChanged);
  window.visualViewport?.addEventListener('scroll', windowChanged);
  window.addEventListener('online', () => current?.stream.tryNow());
  document.addEventListener('visibilitychange', () => document.hidden || current?.stream.tryNow());
  window.addEventListener('hashchange', () => begin(false));
  scrollByTouch(byId('terminal'), screen.terminal);
}

// Beginning

let linked = null; // the token that the address had

/** It comes in the fragment, which browsers send to nobody, and leaves the address bar at once,
 * wherever this is, so that a screenshot or a copied link does not give it away. */
function hideToken() {
  const { session, mode, token } = route.parse(location.hash);
  if (token === null) return;
  linked = token;
  history.replaceState(null, '', location.pathname + location.search + route.format(session, mode));
}

/** Shows what the address names. `first`: the page has just come up. */
function begin(first) {
  hideToken();
  const { session, mode, wrong } = route.parse(location.hash);
  const token = linked;
  linked = null;
  // Only on one machine: elsewhere whoever sends a link could sign its reader in as somebody else.
  if (token !== null && byLink()) credentials.take(token, { kept: true });
  if (byLink() && credentials.token() === '') return showNeedsLink();
  if (wrong) return showOver({ sign: 'mark', title: 'No such session', text: `“${harmless(wrong, 130)}” names none.` });
  if (session) {
    open(session, mode);
  } else if (!choosing) {
    leave();
    choosing = true;
  }
  return look(choosing && (first || token !== null));
}

async function comeBack() {
  const query = location.search;
  history.replaceState(null, '', location.pathname + oidc.destination()); // without the code
  try {
    const { token, kept } = await oidc.finish(ways, query);
    await signedIn(token, kept);
  } catch (error) {
    signin.show(ways, error, signedIn);
  }
}

async function arrive() {
  hideToken();
  try {
    ways = await api.ways();
  } catch {
    showAway();
    return setTimeout(arrive, LIST_EVERY_MS);
  }
  showAccount();
  if (oidc.returning(location.search)) return comeBack();
  const proxied = ways.some(({ kind }) => kind === 'proxy');
  if (!byLink() && !proxied && credentials.token() === '') return needSignIn(null);
  return begin(true);
}

setTheme(theme());
leave();
followSystemTheme();
listen();
arrive();

// For a curious person at the console.
globalThis.holdfast = Object.freeze({ terminal: screen.terminal, link: () => current?.stream.state });
