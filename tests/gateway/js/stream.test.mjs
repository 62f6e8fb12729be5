// The stream against a WebSocket and a clock of our own: what is resent, resumed and given up.
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';

import { State, Stream } from '../../../gateway/holdfast_gateway/web/stream.js';
import { decode, encode } from '../../../gateway/holdfast_gateway/web/wire.js';

const text = (bytes) => Buffer.from(bytes).toString();
const bytes = (string) => new TextEncoder().encode(string);

class FakeSocket {
  static made = [];
  sent = [];
  closed = false;

  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
    FakeSocket.made.push(this);
  }

  send(message) {
    this.sent.push(...decode(message));
  }

  close() {
    this.closed = true;
  }

  // What the other side does

  say(...frames) {
    this.onmessage({ data: Buffer.concat(frames.map(encode)) });
  }

  inputs() {
    return this.sent.filter(({ frame }) => frame === 'input').map(({ data }) => text(data));
  }
}

let clock;
let heard;
let size;
let verdict;
let token;
let stream;

const world = {
  WebSocket: FakeSocket,
  now: () => clock.now,
  random: () => 'page',
  setTimeout: (act, ms) => {
    clock.timers.set(++clock.last, { act, at: clock.now + ms });
    return clock.last;
  },
  clearTimeout: (id) => clock.timers.delete(id),
};

function advance(ms) {
  const end = clock.now + ms;
  for (;;) {
    const due = [...clock.timers].filter(([, { at }]) => at <= end).sort((a, b) => a[1].at - b[1].at)[0];
    if (!due) break;
    clock.timers.delete(due[0]);
    clock.now = Math.max(clock.now, due[1].at);
    due[1].act();
  }
  clock.now = end;
}

const settled = () => new Promise((resolve) => setImmediate(resolve));
const socket = () => FakeSocket.made.at(-1);
const hello = (more = {}) => ({
  frame: 'attach',
  body: { session: 's', session_id: 'one', client: 'c1', resumed: false, seq: 0, columns: 80, rows: 24, ...more },
});
const snapshot = (seq, part = 3, data = '') =>
  ({ frame: 'snapshot', seq, columns: 80, rows: 24, part, data: bytes(data) });
const output = (seq, data) => ({ frame: 'output', seq, data: bytes(data) });
const ack = (number) => ({ frame: 'ack', number, order: number, status: 0 });
const attachBody = () => socket().sent.find(({ frame }) => frame === 'attach').body;

function connect(more) {
  socket().onopen();
  socket().say(hello(more));
}

beforeEach(() => {
  FakeSocket.made = [];
  clock = { now: 0, last: 0, timers: new Map() };
  heard = { states: [], modes: [], output: '', snapshots: 0, errors: [], news: [] };
  size = { columns: 80, rows: 24 };
  verdict = 'away';
  token = 'first';
  stream = new Stream(
    {
      address: () => ({ url: 'ws://x', protocols: ['a', token] }),
      mode: 'write',
      size: () => size,
      probe: async () => ({ verdict, error: { code: verdict } }),
    },
    {
      state: (state, until, error) => heard.states.push(error ? `${state}: ${error.code}` : state),
      mode: (mode, error) => heard.modes.push(error ? `${mode}: ${error.code}` : mode),
      attached: () => {},
      snapshot: ({ first, data }) => {
        if (first) heard.output = '';
        heard.snapshots += 1;
        heard.output += text(data);
      },
      output: (data) => { heard.output += text(data); },
      resize: () => {},
      news: (body) => heard.news.push(body.kind),
      error: (error) => heard.errors.push(error.code),
    },
    world,
  );
  stream.start();
});

const resized = () => socket().sent.filter(({ frame }) => frame === 'resize');

test('a window that changes while it is attached is told then', () => {
  stream.start();
  socket().onopen();
  size = { columns: 100, rows: 30 };
  stream.resize(size);
  assert.deepEqual(resized(), []);
  socket().say(hello());
  assert.deepEqual(resized().map(({ columns, rows }) => [columns, rows]), [[100, 30]]);
});

test('a window that stays as it was is not told again', () => {
  stream.start();
  connect();
  assert.deepEqual(resized(), []);
});

test('the first attach asks for no resume; a later one asks for the next byte', async () => {
  connect();
  assert.equal(attachBody().resume, undefined);
  socket().say(snapshot(10, 3, 'screen'), output(10, 'abc'), output(13, 'd'));
  assert.equal(heard.output, 'screenabcd');
  socket().onclose();
  advance(0);
  socket().onopen();
  assert.deepEqual(attachBody().resume, { session_id: 'one', seq: 14 });
  socket().say(hello({ resumed: true, seq: 14 }), output(14, 'e'));
  assert.equal(heard.output, 'screenabcde', 'nothing is cleared, nothing doubled');
});

test('half a snapshot is not a position to resume from', () => {
  connect();
  socket().say(snapshot(10, 1, 'half'));
  socket().onclose();
  advance(0);
  socket().onopen();
  assert.equal(attachBody().resume, undefined);
});

test('after a gap only a snapshot continues the stream', () => {
  connect();
  socket().say(snapshot(0), output(0, 'ab'), { frame: 'gap', start: 2, end: 50 });
  socket().say(snapshot(50, 3, 'new'), output(50, '!'));
  assert.equal(heard.output, 'new!');
  assert.deepEqual(heard.errors, []);
});

test('output that does not continue where we are is not shown; it begins again', () => {
  connect();
  socket().say(snapshot(0), output(0, 'ab'));
  const broken = socket();
  broken.say(output(5, 'x'));
  assert.equal(heard.output, 'ab');
  assert.ok(broken.closed);
  advance(0);
  socket().onopen();
  assert.equal(attachBody().resume, undefined);
});

test('unanswered input is sent again with the same number and key, answered input is not', () => {
  connect();
  socket().say(snapshot(0));
  stream.send(bytes('a'));
  stream.send(bytes('b'));
  stream.send(bytes('c'));
  socket().say(ack(1));
  const before = socket().sent.filter(({ number }) => number === 2)[0];
  socket().onclose();
  stream.send(bytes('typed while away'));
  advance(0);
  connect({ resumed: true });
  assert.deepEqual(socket().inputs(), ['b', 'c', 'typed while away']);
  const again = socket().sent.filter(({ number }) => number === 2)[0];
  assert.equal(text(again.key), text(before.key));
  assert.notEqual(text(again.key), text(socket().sent.at(-1).key));
});

test('input is not sent before the attach is answered', () => {
  socket().onopen();
  stream.send(bytes('early'));
  assert.deepEqual(socket().inputs(), []);
  socket().say(hello());
  assert.deepEqual(socket().inputs(), ['early']);
});

test('what was typed for one session is not given to another of the same name', () => {
  connect();
  stream.send(bytes('rm -r x\n'));
  socket().onclose();
  advance(0);
  connect({ session_id: 'two' });
  assert.deepEqual(socket().inputs(), []);
});

test('a refused input is told and not sent again', () => {
  connect();
  stream.send(bytes('a'));
  socket().say({ frame: 'error', ref: 1, body: { code: 'no_turn', message: 'ana holds it' } });
  assert.deepEqual(heard.errors, ['no_turn']);
  socket().onclose();
  advance(0);
  connect({ resumed: true });
  assert.deepEqual(socket().inputs(), []);
});

test('typing into a dead line is bounded', () => {
  connect();
  socket().onclose();
  assert.equal(stream.send(new Uint8Array(1 << 14)), true);
  assert.equal(stream.send(bytes('x')), false);
});

test('a large paste goes in parts, in order', () => {
  connect();
  const paste = new Uint8Array(300000).map((_, i) => i);
  stream.send(paste);
  const sent = socket().sent.filter(({ frame }) => frame === 'input');
  assert.ok(sent.length > 1);
  assert.deepEqual(Buffer.concat(sent.map(({ data }) => data)), Buffer.from(paste));
});

test('retries wait longer and longer; trying now does not wait', async () => {
  const waits = [];
  for (let i = 0; i < 6; i++) {
    const before = clock.now;
    const count = FakeSocket.made.length;
    socket().onclose();
    await settled();
    while (FakeSocket.made.length === count) advance(50);
    waits.push(clock.now - before);
  }
  assert.deepEqual(waits, [...waits].sort((a, b) => a - b));
  assert.ok(waits[0] <= 50 && waits.at(-1) >= 2000, String(waits));
  socket().onclose();
  await settled();
  const count = FakeSocket.made.length;
  stream.tryNow();
  assert.equal(FakeSocket.made.length, count + 1);
});

for (const final of ['refused', 'forbidden', 'gone', 'ended', 'unsupported']) {
  test(`a connection that cannot be made because the session is ${final} is not tried again`, async () => {
    verdict = final;
    socket().onclose();
    await settled();
    assert.equal(stream.state, final);
    advance(60000);
    assert.equal(FakeSocket.made.length, 1);
  });
}

test('an ended session is not connected to again', () => {
  connect();
  socket().say({ frame: 'control', body: { kind: 'ended', exit: { code: 0 } } });
  assert.equal(stream.state, State.ended);
  socket().onclose();
  advance(60000);
  assert.equal(FakeSocket.made.length, 1);
  assert.equal(stream.send(bytes('x')), false);
});

test('a silent line is asked, and left when it does not answer', () => {
  connect();
  advance(16000);
  assert.equal(socket().sent.at(-1).body.kind, 'ping');
  const silent = socket();
  advance(16000);
  assert.ok(silent.closed);
  assert.ok(FakeSocket.made.length > 1);
});

test('a line that answers is kept', () => {
  connect();
  for (let i = 0; i < 5; i++) {
    advance(16000);
    socket().say({ frame: 'control', body: { kind: 'answer', id: socket().sent.at(-1).body.id, result: {} } });
  }
  assert.equal(FakeSocket.made.length, 1);
});

test('a terminal that falls behind gets no more output, and a snapshot when it has caught up', () => {
  connect();
  socket().say(snapshot(0), output(0, 'flood'));
  const slow = socket();
  stream.fallBehind();
  slow.say(output(5, 'more'), { frame: 'gap', start: 9, end: 99 }, snapshot(99, 3, 'new'), output(99, '!'));
  assert.equal(heard.output, 'flood');
  assert.deepEqual(heard.errors, []);
  stream.send(bytes('\x03'));
  assert.deepEqual(slow.inputs(), ['\x03'], 'Ctrl+C goes out at once');
  slow.say(ack(1), { frame: 'control', body: { kind: 'state' } });
  assert.deepEqual(heard.news, ['state']);
  stream.caughtUp();
  assert.ok(slow.closed);
  connect();
  assert.equal(attachBody().resume, undefined);
  socket().say(snapshot(200, 3, 'now'));
  assert.equal(heard.output, 'now');
  assert.deepEqual(socket().inputs(), [], 'nothing is typed twice');
});

test('catching up after the line broke changes nothing', () => {
  connect();
  stream.fallBehind();
  socket().onclose();
  advance(0);
  connect();
  const count = FakeSocket.made.length;
  stream.caughtUp();
  assert.equal(FakeSocket.made.length, count);
});

test('requests get their answers, or an error when the line breaks', async () => {
  connect();
  const answered = stream.ask('take');
  const { id } = socket().sent.at(-1).body;
  socket().say({ frame: 'control', body: { kind: 'answer', id, result: { holder: 'ana' } } });
  assert.deepEqual(await answered, { holder: 'ana' });
  const lost = stream.ask('take');
  socket().onclose();
  await assert.rejects(lost);
});

test('unknown news is passed on and harmless', () => {
  connect();
  socket().say({ frame: 'control', body: { kind: 'weather' } });
  assert.equal(stream.state, State.connected);
});

test('a stopped stream stays stopped, whatever its socket still says', async () => {
  socket().onclose();
  stream.stop();
  await settled();
  advance(60000);
  assert.equal(FakeSocket.made.length, 1);
});

// Who may what

const farewell = (code) => ({ frame: 'error', ref: 0, body: { code, message: code, advice: 'do this' } });

test('who may not type is let in to watch, at the same place, and what he typed is not kept', async () => {
  connect();
  socket().say(snapshot(0), output(0, 'ab'));
  stream.send(bytes('rm -r x'));
  socket().say(farewell('forbidden'));
  socket().onclose();
  assert.deepEqual(heard.modes, ['view: forbidden']);
  assert.deepEqual(heard.errors, [], 'that is a state, not a complaint');
  socket().onopen();
  const { mode, resume } = attachBody();
  assert.deepEqual({ mode, seq: resume.seq }, { mode: 'view', seq: 2 });
  socket().say(hello({ resumed: true, seq: 2 }));
  assert.deepEqual(socket().inputs(), []);
});

test('a watcher who is cut may not even look, if the gateway says so', async () => {
  connect();
  stream.setMode('view');
  connect({ resumed: true });
  verdict = 'forbidden';
  socket().say(farewell('forbidden'));
  socket().onclose();
  await settled();
  assert.equal(heard.states.at(-1), 'forbidden: forbidden');
  advance(60000);
  assert.equal(FakeSocket.made.length, 2);
});

test('to watch and to type again are the same stream at its seq', () => {
  connect();
  socket().say(snapshot(0), output(0, 'abc'));
  for (const mode of ['view', 'write']) {
    stream.setMode(mode);
    socket().onopen();
    assert.equal(attachBody().mode, mode);
    assert.equal(attachBody().resume.seq, 3);
    socket().say(hello({ resumed: true, seq: 3 }));
  }
  assert.deepEqual(heard.modes, ['view', 'write']);
  assert.equal(heard.snapshots, 1);
});

test('an expired token stops the stream, and a new one takes it up where it was', async () => {
  connect();
  socket().say(snapshot(0), output(0, 'abc'));
  stream.send(bytes('typed'));
  verdict = 'refused';
  socket().say(farewell('unauthenticated'));
  socket().onclose();
  await settled();
  assert.equal(stream.state, State.refused);
  token = 'second';
  stream.start();
  assert.deepEqual(socket().protocols, ['a', 'second']);
  socket().onopen();
  assert.equal(attachBody().resume.seq, 3);
  socket().say(hello({ resumed: true, seq: 3 }));
  assert.deepEqual(socket().inputs(), ['typed']);
});

for (const [name, say] of [
  ['frames of another version', () => socket().onmessage({ data: Buffer.from('0301000000000000', 'hex') })],
  ['a gateway that says so', () => { socket().say(farewell('unsupported')); socket().onclose(); }],
]) {
  test(`${name} are not tried again`, async () => {
    socket().onopen();
    say();
    await settled();
    assert.equal(heard.states.at(-1), 'unsupported: unsupported');
    advance(60000);
    assert.equal(FakeSocket.made.length, 1);
  });
}

// Sessions that take their time

test('a session that is being woken is waited for on the same connection', async () => {
  verdict = 'coming';
  for (let i = 0; i < 3; i++) {
    advance(10000);
    await settled();
  }
  assert.equal(FakeSocket.made.length, 1);
  connect();
  assert.equal(stream.state, State.connected);
});

test('a connection that is not made for no reason is made anew', async () => {
  advance(10000);
  await settled();
  assert.equal(stream.state, State.waiting);
  advance(0);
  assert.equal(FakeSocket.made.length, 2);
});
