// One session's stream: attach, keep the position, come back by itself. No DOM; the page and the
// tests give it a WebSocket, a clock and their callbacks.
//
// Invariants:
// - `#seq` is the position after the last byte handed to `on.output` or `on.snapshot`, or null when
//   the screen is not whole (before the first snapshot, and between the parts of one).
// - an input stays in `#unacked` until the session has answered it, and is sent again with its key
//   after a reconnect to the same session, so that it takes effect once.

import { MAX_INPUT, Part, decode, encode } from './wire.js';

export const State = Object.freeze({
  connecting: 'connecting', // first attempt, or a retry under way
  connected: 'connected',
  waiting: 'waiting', // for the next attempt, at `until`
  behind: 'behind', // connected, but output is not taken until the terminal has caught up
  ended: 'ended',
  asleep: 'asleep', // suspended until somebody wakes it; `start` again then
  refused: 'refused', // no token, or one that is not valid any more; `start` again with another
  forbidden: 'forbidden', // not even to look
  gone: 'gone', // no such session
  unsupported: 'unsupported', // the two sides do not speak a common version
  stopped: 'stopped',
});
// What the gateway says before it closes for good, and not of a single act.
const FAREWELLS = new Set(['unauthenticated', 'forbidden', 'unsupported']);
const SKIPPED = new Set(['snapshot', 'output', 'gap', 'resize']);
const FINAL = new Set([
  State.ended, State.asleep, State.refused, State.forbidden, State.gone, State.unsupported, State.stopped,
]);

// The first retry is at once: a restarted gateway or sidecar is back within that time.
const BACKOFF_MS = [0, 150, 300, 600, 1200, 2500, 5000, 10000];
// What is typed while nobody listens is kept, but no novel: past this it is refused aloud.
const UNACKED_LIMIT = 1 << 20;
const TYPED_AHEAD_LIMIT = 1 << 14;
// Browsers hide WebSocket pings. After this silence we ask, and after as much again we give up:
// a laptop that slept, or a tunnel that broke, says nothing.
const SILENCE_MS = 15000;
const CONNECT_MS = 10000;

const textBytes = new TextEncoder();

export class Stream {
  #on;
  #world;
  #options;
  #socket = null;
  #state = State.stopped;
  #seq = null;
  #sessionId = null;
  #attached = false;
  #unacked = new Map(); // number → {frame, size}, in the order typed
  #unackedBytes = 0;
  #counter = 0;
  #prefix;
  #attempts = 0;
  #retry = null;
  #silence = null;
  #asked = new Map(); // request number → {resolve, reject}
  #mode;
  #size = null; // the window's, as it was last told
  #farewell = null; // the error that the other side is about to close with
  #heard = 0;

  /**
   * options: {address: () => ({url, protocols}), mode, size: () => ({columns, rows}),
   *           probe: async () => ({verdict, error})}
   *   `probe` says why a connection cannot be made: a final state, 'coming' (it will be there, and
   *   is worth waiting for) or 'away'.
   * on: {state(state, until, error), mode(mode, error), attached, snapshot, output, resize, news, error}
   * world: {WebSocket, setTimeout, clearTimeout, now, random}
   */
  constructor(options, on, world) {
    this.#options = options;
    this.#mode = options.mode;
    this.#on = on;
    this.#world = world;
    this.#prefix = `${world.random()}-`;
  }

  get state() {
    return this.#state;
  }

  get mode() {
    return this.#mode;
  }

  get seq() {
    return this.#seq;
  }

  /** How many messages came: whether anything can have changed. */
  get heard() {
    return this.#heard;
  }

  /** To type, or to watch only: the same stream, at its seq. */
  setMode(mode) {
    if (mode === this.#mode || FINAL.has(this.#state)) return;
    this.#mode = mode;
    this.#on.mode(mode, null);
    this.#drop();
    this.#connect();
  }

  start() {
    if (this.#socket === null) this.#connect();
  }

  stop() {
    this.#become(State.stopped);
    this.#drop();
  }

  /** Do not wait for the next attempt. */
  tryNow() {
    if (this.#state !== State.waiting) return;
    this.#attempts = 0;
    this.#connect();
  }

  /** The terminal cannot keep up, and a WebSocket cannot be made to wait: what it delivers would
   * pile up in memory. So output is thrown away from here on, while input and news still pass (it
   * is now that one wants Ctrl+C). `caughtUp` attaches anew and gets a snapshot of that moment. */
  fallBehind() {
    if (this.#state !== State.connected) return;
    this.#seq = null;
    this.#become(State.behind);
  }

  caughtUp() {
    if (this.#state !== State.behind) return;
    this.#drop();
    this.#connect();
  }

  /** Input for the session. False if it was not taken because too much is waiting already. */
  send(bytes) {
    if (FINAL.has(this.#state)) return false;
    const limit = this.#attached ? UNACKED_LIMIT : TYPED_AHEAD_LIMIT;
    if (this.#unackedBytes + bytes.length > limit && this.#unackedBytes > 0) return false;
    for (let at = 0; at < bytes.length; at += MAX_INPUT) {
      const number = ++this.#counter;
      const data = bytes.slice(at, at + MAX_INPUT);
      const key = textBytes.encode(this.#prefix + number);
      const frame = encode({ frame: 'input', number, key, data });
      this.#unacked.set(number, { frame, size: data.length });
      this.#unackedBytes += data.length;
      if (this.#attached) this.#socket.send(frame);
    }
    return true;
  }

  /** This window's size; the session takes it when this client leads. */
  resize({ columns, rows }) {
    if (!this.#attached) return; // it is told when that is so
    this.#size = { columns, rows };
    this.#socket.send(encode({ frame: 'resize', seq: 0, columns, rows }));
  }

  /** A request of docs/protocol.md; resolves to its result. */
  ask(kind, body = {}) {
    if (!this.#attached) return Promise.reject(new Error('not connected'));
    const id = ++this.#counter;
    this.#socket.send(encode({ frame: 'control', body: { ...body, kind, id } }));
    return new Promise((resolve, reject) => this.#asked.set(id, { resolve, reject }));
  }

  // The connection

  #connect() {
    this.#clear();
    this.#become(State.connecting);
    const { url, protocols } = this.#options.address();
    const socket = new this.#world.WebSocket(url, protocols);
    socket.binaryType = 'arraybuffer';
    this.#socket = socket;
    let opened = false;
    socket.onopen = () => {
      opened = true;
      this.#attach();
    };
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data);
    };
    socket.onclose = () => {
      if (socket === this.#socket) this.#closed(opened);
    };
    this.#silence = this.#world.setTimeout(() => this.#slow(socket), CONNECT_MS);
  }

  // The gateway does not answer an upgrade while it waits for the session: one that is being woken
  // or moved takes its time, and to begin again would not be faster.
  async #slow(socket) {
    const { verdict } = await this.#options.probe();
    if (socket !== this.#socket || this.#attached) return;
    if (verdict !== 'coming') this.#lost();
    else this.#silence = this.#world.setTimeout(() => this.#slow(socket), CONNECT_MS);
  }

  #attach() {
    this.#size = this.#options.size();
    const body = { mode: this.#mode, ...this.#size };
    if (this.#seq !== null) body.resume = { session_id: this.#sessionId, seq: this.#seq };
    this.#socket.send(encode({ frame: 'attach', body }));
    this.#listen();
  }

  // Forget the socket first, so that its late events find nobody.
  #drop() {
    const socket = this.#socket;
    this.#clear();
    socket?.close();
  }

  #clear() {
    this.#socket = null;
    this.#attached = false;
    this.#farewell = null;
    this.#world.clearTimeout(this.#retry);
    this.#world.clearTimeout(this.#silence);
    for (const { reject } of this.#asked.values()) reject(new Error('the connection was lost'));
    this.#asked.clear();
  }

  #lost() {
    const socket = this.#socket;
    this.#closed(true);
    socket?.close();
  }

  async #closed(opened) {
    const told = this.#farewell;
    this.#clear();
    if (FINAL.has(this.#state)) return;
    if (told?.code === 'unsupported') return this.#become(State.unsupported, null, told);
    if (told?.code === 'forbidden' && this.#mode === 'write') {
      // Perhaps he may look.
      this.#mode = 'view';
      this.#unacked.clear();
      this.#unackedBytes = 0;
      this.#on.mode('view', told);
      return this.#connect();
    }
    if (!opened || told !== null) {
      // A browser does not say why an upgrade failed; ask by plain HTTP.
      const mark = (this.#socket = { close() {} }); // nobody starts another attempt meanwhile
      const { verdict, error } = await this.#options.probe();
      if (this.#socket !== mark) return undefined;
      this.#socket = null;
      if (FINAL.has(verdict)) return this.#become(verdict, null, error ?? null);
    }
    const pause = BACKOFF_MS[Math.min(this.#attempts++, BACKOFF_MS.length - 1)];
    this.#retry = this.#world.setTimeout(() => this.#connect(), pause);
    return this.#become(State.waiting, this.#world.now() + pause);
  }

  #listen() {
    this.#world.clearTimeout(this.#silence);
    this.#silence = this.#world.setTimeout(() => {
      if (!this.#attached) return this.#lost();
      this.ask('ping').catch(() => {});
      this.#silence = this.#world.setTimeout(() => this.#lost(), SILENCE_MS);
    }, SILENCE_MS);
  }

  #become(state, until = null, error = null) {
    if (state === this.#state && until === null) return;
    this.#state = state;
    this.#on.state(state, until, error);
  }

  // Frames

  #receive(message) {
    this.#listen();
    this.#heard += 1;
    try {
      for (const frame of decode(message)) this.#take(frame);
    } catch (error) {
      // Out of step: nothing after this can be trusted, so begin again with a snapshot. Of another
      // version it would be the same again.
      this.#seq = null;
      const told = { code: error.code ?? 'internal', message: error.message, advice: '' };
      if (told.code === 'unsupported') this.#farewell = told;
      else this.#on.error(told);
      this.#lost();
    }
  }

  #take(frame) {
    const { frame: kind } = frame;
    if (this.#state === State.behind && SKIPPED.has(kind)) return undefined;
    switch (kind) {
      case 'attach': return this.#attachedAs(frame.body);
      case 'snapshot': return this.#snapshot(frame);
      case 'output': return this.#output(frame);
      case 'gap': this.#seq = null; return undefined;
      case 'ack': return this.#settle(frame.number);
      case 'resize': return this.#on.resize(frame);
      case 'control': return this.#control(frame.body);
      case 'error': return this.#error(frame);
      default: throw new Error(`a server does not send ${kind} frames`);
    }
  }

  #attachedAs(body) {
    if (this.#sessionId !== null && body.session_id !== this.#sessionId) {
      // Another session of the same name: what was typed was not meant for it.
      this.#unacked.clear();
      this.#unackedBytes = 0;
    }
    this.#sessionId = body.session_id;
    if (!body.resumed) this.#seq = null;
    this.#attached = true;
    this.#attempts = 0;
    this.#become(State.connected);
    this.#on.attached(body);
    if (this.#socket === null) return; // it was stopped by that
    const { columns, rows } = this.#options.size();
    if (columns !== this.#size.columns || rows !== this.#size.rows) this.resize({ columns, rows });
    for (const { frame } of this.#unacked.values()) this.#socket.send(frame);
  }

  #snapshot({ seq, columns, rows, part, data }) {
    const last = (part & Part.last) !== 0;
    this.#seq = last ? seq : null;
    this.#on.snapshot({ columns, rows, first: (part & Part.first) !== 0, last, data });
  }

  #output({ seq, data }) {
    if (this.#seq === null || seq !== this.#seq) {
      throw new Error(`output at ${seq} where ${this.#seq} was expected`);
    }
    this.#seq += data.length;
    this.#on.output(data);
  }

  #settle(number) {
    const entry = this.#unacked.get(number);
    if (entry === undefined) return;
    this.#unacked.delete(number);
    this.#unackedBytes -= entry.size;
  }

  #control(body) {
    if (body.kind === 'answer') {
      this.#asked.get(body.id)?.resolve(body.result ?? {});
      this.#asked.delete(body.id);
      return;
    }
    this.#on.news(body);
    if (body.kind === 'ended') this.#become(State.ended);
  }

  #error({ ref, body }) {
    const asked = this.#asked.get(ref);
    this.#asked.delete(ref);
    this.#settle(ref); // it was refused; sending it again would only be refused again
    if (asked) asked.reject(Object.assign(new Error(body.message), body));
    else if (ref === 0 && FAREWELLS.has(body.code)) this.#farewell = body;
    else this.#on.error(body);
  }
}
