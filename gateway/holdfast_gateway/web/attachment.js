// One session on the page: its stream drawn on the screen, and all that is said of it.

import * as api from './api.js';
import { byId, sameActor, sentence, shownName } from './dom.js';
import { keyOf } from './route.js';
import { QUIET_MS, endingSentence, messageOf, noticeOf, onItsWay, percentOf, standingOf, suspendedOf } from './states.js';
import { State, Stream } from './stream.js';
import * as view from './view.js';

const TICK_MS = 250;
// While it is not there: how far it has come.
const ASK_MS = 1000;
const UP = new Set([State.connected, State.behind]);
const OVER = new Set([State.forbidden, State.gone, State.unsupported]);
const NEWS = new Set(['moving', 'saving']);

const world = {
  WebSocket,
  setTimeout: (act, ms) => setTimeout(act, ms),
  clearTimeout: (timer) => clearTimeout(timer),
  now: () => Date.now(),
  random: () => crypto.randomUUID(),
};

export class Attachment {
  #session;
  #screen;
  #on;
  #self = null;
  #facts = { clients: [], more: 0, own: null, holder: null, lead: null, asking: [], title: '' };
  #kept = []; // who asked for the turn, and was told "not now"
  #state = null;
  #why = null; // why he may not type
  #link = { state: State.stopped, until: 0, since: Date.now() };
  #seen = false; // whether the screen has been seen
  #news = null;
  #newsSince = 0;
  #progress = '';
  #phase = null;
  #way = null;
  #ticker = 0;
  #asked = 0;

  /** on: {refused(error), over(message), named(), leave()} */
  constructor(session, mode, screen, on) {
    this.#session = session;
    this.#screen = screen;
    this.#on = on;
    const options = {
      address: () => api.streamAddress(session),
      mode,
      size: () => screen.measure(),
      probe: () => this.#probe(),
    };
    this.stream = new Stream(options, {
      state: (state, until, error) => this.#linked(state, until, error),
      mode: (now, error) => this.#changedMode(now, error),
      attached: (body) => this.#attached(body),
      snapshot: (part) => screen.snapshot(part),
      output: (bytes) => screen.write(bytes),
      resize: (size) => screen.resizeTo(size),
      news: (body) => this.#heard(body),
      error: (error) => this.#complain(error),
    }, world);
  }

  get session() {
    return this.#session;
  }

  get mode() {
    return this.stream.mode;
  }

  /** What is known here better than elsewhere. */
  get about() {
    const { holder } = this.#facts;
    return { ...this.#screen.size, ...(this.stream.seq === null ? {} : { seq: this.stream.seq }), ...(holder ? { holder: holder.actor, holder_shown: shownName(holder) } : {}) };
  }

  start(several) {
    this.#screen.clear();
    this.#screen.setReadOnly(this.mode === 'view');
    view.showTerminal();
    view.showClients([], null);
    view.hideActivity();
    this.showName(several);
    this.#ticker = setInterval(() => this.#tick(), TICK_MS);
    this.stream.start();
  }

  stop() {
    clearInterval(this.#ticker);
    view.showNotice(null);
    view.showStanding(null);
    view.hideToast();
    this.stream.stop();
  }

  showName(several) {
    view.showName(this.#session, this.#facts.title, several);
  }

  /** Idle reports, such as the mouse moving, are only the lead's to send. */
  get leads() {
    return this.#facts.lead === this.#self;
  }

  send(bytes) {
    if (this.mode === 'view' || this.stream.state === State.ended) return;
    this.#screen.terminal.scrollToBottom();
    if (!this.stream.send(bytes)) view.showToast('Not sent: too much is waiting for the connection.');
  }

  // The connection

  async #probe() {
    const found = await api.verdict(this.#session);
    this.#learn(found.info);
    return found;
  }

  #linked(state, until, error) {
    if (UP.has(this.#link.state) !== UP.has(state)) this.#link.since = Date.now();
    Object.assign(this.#link, { state, until });
    if (OVER.has(state)) return this.#on.over(messageOf(state, error, keyOf(this.#session)));
    if (state === State.refused) this.#on.refused(error);
    if (state === State.ended) this.#ended();
    if (state === State.asleep) return this.#asleep();
    return this.#tick();
  }

  // Trouble is told when it lasts, and only success takes it away: a gateway that is replaced by
  // another costs no flicker.
  #tick() {
    const now = Date.now();
    const { state, until, since } = this.#link;
    const away = !UP.has(state) && state !== State.ended;
    if (!away || now - since > QUIET_MS) view.showConnection(state);
    if (state === State.ended || state === State.asleep || state === State.stopped) return;
    const notice = noticeOf({
      link: state, until, now, since, attached: this.#seen, news: this.#news, newsSince: this.#newsSince, progress: this.#progress, phase: this.#phase, way: this.#way,
    });
    const action = notice?.retry ? { label: 'Try now', act: () => this.stream.tryNow() } : null;
    byId('app').dataset.link = away && notice ? 'down' : 'up';
    view.showNotice(notice && { ...notice, action });
    if (away && now - since > QUIET_MS && now - this.#asked > ASK_MS && state !== State.refused) this.#ask(now);
  }

  async #ask(now) {
    this.#asked = now;
    this.#learn(await api.info(this.#session).catch(() => null));
  }

  // It does not go on because somebody looks: it is said why, and who may wakes it here.
  async #asleep() {
    const info = await api.info(this.#session).catch(() => null);
    if (this.stream.state !== State.asleep) return;
    if (!info?.suspended || !api.asleep(info)) return this.stream.start(); // somebody was faster
    this.#showState(info.state);
    view.showConnection(State.asleep);
    const action = info.suspended.may ? { label: 'Wake it', act: () => this.#wake() } : { label: 'Look again', act: () => this.stream.start() };
    view.showNotice({ ...suspendedOf(info.suspended), action });
  }

  async #wake() {
    try {
      await api.wake(this.#session);
      this.#link.since = Date.now();
      this.stream.start();
    } catch (error) {
      this.#complain(error);
    }
  }

  #learn(info) {
    if (!info || UP.has(this.stream.state)) return;
    this.#way = onItsWay(info.phase, this.#way)?.way ?? this.#way;
    this.#phase = info.phase ?? null;
    if (!this.#seen || this.#phase !== 'Running') this.#showState(info.state);
  }

  #changedMode(mode, why) {
    this.#why = why;
    this.#screen.setReadOnly(mode === 'view');
    this.#stand();
  }

  // What the session says

  #attached(body) {
    this.#self = body.client;
    this.#seen = true;
    this.#news = this.#phase = this.#way = null;
    // Not its size: that comes with the snapshot, or where it changed in the resumed stream.
    this.#know(body);
    this.#showState(body.state);
    this.#tick();
  }

  #heard(body) {
    if (body.kind === 'clients') this.#know(body);
    else if (body.kind === 'state') this.#showState(body.state ?? body);
    else if (body.kind === 'ended') this.#showState({ activity: 'ended', exit: body.exit });
    else if (NEWS.has(body.kind) || body.kind === 'stayed') this.#busy(body.kind);
    else if (body.kind === 'progress') this.#progress = percentOf(body);
    else if (body.kind === 'title') this.#know({ title: body.title ?? '' });
  }

  #busy(kind) {
    this.#news = NEWS.has(kind) ? kind : null;
    this.#newsSince = Date.now();
    this.#progress = '';
    if (this.#news) view.showActivity({ activity: kind, sentence: '' });
    else this.#showState(this.#state);
    this.#tick();
  }

  #know({ clients, more, holder, holder_uid, holder_shown, lead, asking, title }) {
    const facts = this.#facts;
    if (clients) {
      Object.assign(facts, { clients, more: more ?? 0, holder: holder ? { actor: holder, uid: holder_uid, shown: holder_shown } : null, lead: lead ?? null, asking: asking ?? [] });
      // Of a crowd not all are named each time.
      facts.own = clients.find(({ client }) => client === this.#self) ?? facts.own;
    }
    this.#kept = this.#kept.filter((one) => facts.asking.some((other) => sameActor(one, other)));
    if (title !== undefined && title !== facts.title) {
      facts.title = title;
      this.#on.named();
    }
    const marked = facts.clients.map((client) => ({ ...client, lead: client.client === facts.lead, turn: sameActor(client, facts.holder), asks: facts.asking.some((one) => sameActor(one, client)) }));
    view.showClients(marked, this.#self, facts.more);
    this.#stand();
  }

  #stand() {
    const { own, clients, holder, asking } = this.#facts;
    const ended = this.#state?.activity === 'ended';
    const here = clients.some((one) => sameActor(one, holder) && one.mode !== 'view');
    const standing = standingOf({ mode: this.mode, holder, own, why: this.#why, ended, here, asking, kept: this.#kept });
    const acts = {
      take: () => this.#take(),
      type: () => this.stream.setMode('write'),
      ask: () => this.#turn('ask'),
      give: () => this.#turn('release', { to: standing.to.actor, to_uid: standing.to.uid ?? '' }),
      keep: () => { this.#kept.push(...asking); this.#stand(); },
    };
    view.showStanding(standing, (act) => { acts[act](); this.#screen.focus(); });
  }

  #showState(state) {
    if (!state) return;
    this.#state = state;
    view.showActivity(this.#news ? { activity: this.#news } : state);
    if (state.activity === 'ended') this.#showEnd();
  }

  #showEnd() {
    byId('app').dataset.link = 'up';
    this.#stand();
    this.#screen.setReadOnly(true);
    view.showNotice({ title: endingSentence(this.#state?.exit), low: true, action: { label: 'All sessions', act: this.#on.leave } });
  }

  // Found ended on connecting, when nobody is left to tell how: the gateway still knows.
  async #ended() {
    if (this.#state?.activity === 'ended') return this.#showEnd();
    const { state } = await api.info(this.#session).catch(() => ({ state: null }));
    return this.#showState(state ?? { activity: 'ended', exit: null });
  }

  #complain(error) {
    const take = { label: 'Take the turn', act: () => { this.#take(); this.#screen.focus(); } };
    const text = `${sentence(error.message)} ${sentence(error.advice)}`.trim();
    view.showToast(text, error.code === 'no_turn' ? take : null);
  }

  #take() {
    view.hideToast();
    this.#turn('take');
  }

  #turn(kind, body = {}) {
    this.stream.ask(kind, body).catch((error) => this.#complain(error));
  }
}
