// What the page says: addresses, states, processes, the timeline, tokens. Facts in, words out.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { holder, problem } from '../../../gateway/holdfast_gateway/web/credentials.js';
import { sentence, shortName } from '../../../gateway/holdfast_gateway/web/dom.js';
import { grouped, matches } from '../../../gateway/holdfast_gateway/web/list.js';
import * as processes from '../../../gateway/holdfast_gateway/web/processes.js';
import { format, parse, same } from '../../../gateway/holdfast_gateway/web/route.js';
import { messageOf, noticeOf, onItsWay, percentOf, standingOf } from '../../../gateway/holdfast_gateway/web/states.js';
import { clock, entries } from '../../../gateway/holdfast_gateway/web/timeline.js';

// Addresses

test('addresses and what they name', () => {
  const session = { namespace: 'team', name: 'build' };
  assert.deepEqual(parse('#/team/build'), { session, mode: 'write', token: null });
  assert.deepEqual(parse('#/team/build?view').mode, 'view');
  assert.deepEqual(parse('#/build').session, { namespace: null, name: 'build' });
  for (const nothing of ['', '#', '#/']) assert.equal(parse(nothing).session, null);
  for (const address of ['#/team/build', '#/build', '#/team/build?view']) {
    const { session: named, mode } = parse(address);
    assert.equal(format(named, mode), address);
  }
  assert.ok(same(parse('#/team/build').session, session));
  assert.ok(!same(parse('#/build').session, session));
});

test('the link of one machine', () => {
  const { session, token, mode } = parse('#token=abc&session=build&mode=view');
  assert.deepEqual({ session, token, mode }, { session: { namespace: null, name: 'build' }, token: 'abc', mode: 'view' });
});

test('an address that names nothing is not made a path of', () => {
  for (const wrong of ['#/a/b/c', '#/../x', '#/%2e%2e/x', '#/Team/x', '#/team/x%2fy', `#/${'x'.repeat(64)}`]) {
    assert.equal(parse(wrong).session, null, wrong);
    assert.ok(parse(wrong).wrong, wrong);
  }
});

// States

const facts = (more) => ({ link: 'connected', now: 10000, since: 0, attached: true, news: null, phase: null, way: null, ...more });

test('nothing stands over a session that is well, nor over half a second of trouble', () => {
  assert.equal(noticeOf(facts()), null);
  assert.equal(noticeOf(facts({ link: 'connecting', since: 9600 })), null);
  assert.equal(noticeOf(facts({ link: 'waiting', since: 9600, until: 12000 })), null);
});

test('a lost connection counts down, and can be tried at once', () => {
  const { title, text, retry } = noticeOf(facts({ link: 'waiting', until: 12300 }));
  assert.equal(title, 'Connection lost');
  assert.match(text, /in 3 s.*kept/);
  assert.ok(retry);
  assert.equal(noticeOf(facts({ link: 'connecting', attached: false })).title, 'Connecting');
  assert.equal(noticeOf(facts({ link: 'waiting', attached: false, until: 12000 })).title, 'No connection');
});

test('a move is a move before and after its connection is closed, and not for ever', () => {
  const before = noticeOf(facts({ news: 'moving', newsSince: 8000 }));
  const after = noticeOf(facts({ link: 'waiting', until: 12000, news: 'moving', newsSince: 6000 }));
  assert.deepEqual([before.title, after.title], ['Moving to another node', 'Moving to another node']);
  assert.deepEqual([before.step, after.step], [0, 1]);
  assert.deepEqual([before.elapsed, after.elapsed], [2, 4]);
  const late = noticeOf(facts({ link: 'waiting', now: 1e6, until: 1e6, news: 'moving', newsSince: 0 }));
  assert.equal(late.title, 'Connection lost');
});

test('how much of it has been copied is told while it can be known', () => {
  const moving = (progress, link = 'connected') => noticeOf(facts({ link, until: 12000, news: 'moving', newsSince: 8000, progress })).text;
  assert.match(moving(percentOf({ sent: 34, expected: 100 })), /^34 % has been copied/);
  assert.match(moving(percentOf({ sent: 34, expected: 0 })), /^Everything goes along/);
  assert.match(moving('34 %', 'waiting'), /^Everything goes along/);
  assert.equal(percentOf({ sent: 7, expected: 5 }), '99 %');
  assert.equal(percentOf({ sent: '<b>', expected: 5 }), '');
});

test('phases on the way are told, and waking stays waking through what it passes', () => {
  let way = null;
  const steps = ['Suspended', 'Restoring', 'Starting'].map((phase) => {
    const found = onItsWay(phase, way);
    way = found.way;
    const { title, step } = noticeOf(facts({ link: 'connecting', attached: false, phase, way }));
    return `${title} ${step}`;
  });
  assert.deepEqual(steps, ['Waking up 0', 'Waking up 1', 'Waking up 1']);
  assert.equal(noticeOf(facts({ link: 'connecting', phase: 'Starting' })).title, 'Starting');
  assert.equal(noticeOf(facts({ link: 'connecting', phase: 'Lost' })).title, 'Its node was lost');
  assert.equal(onItsWay('Running'), null);
  assert.equal(onItsWay('toString'), null);
});

test('who cannot type is told why, and what he can do', () => {
  const why = { code: 'forbidden', message: 'bo may not create sessions/type', advice: 'ask for it' };
  assert.equal(standingOf({ mode: 'write', holder: { actor: 'ana' }, own: { actor: 'ana' } }), null);
  assert.equal(standingOf({ mode: 'write', holder: null, own: { actor: 'ana' } }), null);
  assert.equal(standingOf({ mode: 'write', holder: { actor: 'bo' }, own: { actor: 'ana' } }).act, 'take');
  assert.equal(standingOf({ mode: 'view', holder: { actor: 'bo' }, own: { actor: 'ana' } }).label, 'Type here too');
  assert.equal(standingOf({ mode: 'view', ended: true }), null);
  const bo = { actor: 'system:serviceaccount:team:bo', uid: 'u-1' };
  const elsewhere = { mode: 'write', holder: bo, own: { actor: 'ana' }, here: true };
  assert.deepEqual([standingOf(elsewhere).text, standingOf(elsewhere).act, standingOf(elsewhere).also.act], ['bo (team) has the turn.', 'ask', 'take']);
  const asked = standingOf({ ...elsewhere, asking: [{ actor: 'ana', uid: '' }] });
  assert.deepEqual([asked.detail, asked.act, asked.also], ['You have asked for it.', 'take', undefined]);
  const { text, detail } = standingOf({ mode: 'view', why });
  assert.equal(text, 'You may look, not type.');
  assert.equal(detail, 'Bo may not create sessions/type. Ask for it.');
});

test('who has the turn hears who asks for it', () => {
  const own = { mode: 'write', holder: { actor: 'ana' }, own: { actor: 'ana' }, here: true };
  const [bo, cy, di] = ['system:serviceaccount:team:bo', 'cy', 'di'].map((actor) => ({ actor }));
  const one = standingOf({ ...own, asking: [bo] });
  assert.deepEqual([one.text, one.act, one.to, one.may], ['bo (team) asks for the turn.', 'give', bo, true]);
  assert.equal(standingOf({ ...own, asking: [bo, cy, di] }).detail, 'So do 2 more.');
  assert.equal(standingOf({ ...own, asking: [bo, cy], kept: [bo] }).to, cy);
  assert.equal(standingOf({ ...own, asking: [bo], kept: [bo] }), null);
  assert.equal(standingOf({ ...own, asking: [bo], ended: true }), null);
});

test('two people who differ in a name or a UID are two (attack 35)', () => {
  const own = { mode: 'write', own: { actor: 'ana', uid: 'u-1' }, here: true };
  for (const holder of [{ actor: 'ana', uid: 'u-2' }, { actor: 'ana\u200b', uid: 'u-1', shown: 'ana~0123456789' }]) {
    assert.equal(standingOf({ ...own, holder }).act, 'ask');
  }
  assert.equal(standingOf({ ...own, holder: { actor: 'ana', uid: 'u-1' } }), null);
  assert.equal(standingOf({ ...own, holder: { actor: 'ana\u200b', shown: 'ana~0123456789' } }).text, 'ana~0123456789 has the turn.');
  assert.notEqual(shortName('system:serviceaccount:team:bo'), shortName('system:serviceaccount:prod:bo'));
});

test('how much each computed since the look before', () => {
  const look = (at, ...known) => ({ at, processes: known.map(([pid, cpu_ms, started_ms = 1]) => ({ pid, cpu_ms, started_ms })) });
  const before = look(10, [1, 100], [2, 50, 7], [3, 5], [4, null]);
  const loads = processes.loads(before, look(12, [1, 2100], [2, 60, 8], [4, 3], [5, 900]));
  assert.deepEqual([...loads], [[1, 100]]); // 2 is another process of that number, 5 is new
  assert.equal(processes.loads(null, before).size, 0);
  assert.equal(processes.loads(look(10, [1, 0]), look(10.1, [1, 100])).size, 0);
  assert.equal(processes.loads(look(undefined, [1, 0]), look(undefined, [1, 100])).size, 0); // of an older sidecar
});

test('what is over says why, and what to do', () => {
  const error = { message: 'this gateway speaks version 3', advice: 'upgrade the client' };
  const { text, reload } = messageOf('unsupported', error, 'team/build');
  assert.match(text, /This gateway speaks version 3\. Upgrade the client\./);
  assert.ok(reload);
  assert.match(messageOf('gone', null, 'team/build').text, /team\/build/);
  assert.match(messageOf('forbidden', null, 'team/build').text, /may not look/);
});

test('sentences do not capitalize names', () => {
  assert.equal(sentence('system:serviceaccount:a:b may not'), 'system:serviceaccount:a:b may not.');
  assert.equal(sentence('try again.'), 'Try again.');
  assert.equal(sentence(''), '');
  assert.equal(shortName('system:serviceaccount:team:ana'), 'ana (team)');
  assert.equal(shortName(''), 'somebody');
});

// Processes

const process = (pid, ppid, more = {}) => ({
  pid, ppid, pgid: pid, state: 'S', name: `p${pid}`, command: [`/bin/p${pid}`, 'x'], started_ms: pid * 1000,
  fds: [], listening: [], wait_channel: '', threads: [], ...more,
});

test('a tree of processes: parents first, whoever has no parent here at the root', () => {
  const graph = { processes: [process(9, 3), process(3, 2), process(2, 1), process(5, 2), process(7, 7)] };
  assert.deepEqual(processes.rows(graph).map(({ process: { pid }, depth }) => `${pid}@${depth}`), ['2@0', '3@1', '9@2', '5@1', '7@0']);
  assert.deepEqual(processes.rows({}), []);
  // A circle has no root to begin at; it must not hang.
  assert.deepEqual(processes.rows({ processes: [process(1, 2), process(2, 1)] }), []);
});

test('what is listened on, once, TCP first', () => {
  const tcp = (address, port) => ({ protocol: 'tcp', address, port });
  const graph = {
    processes: [
      process(2, 1, { listening: [{ protocol: 'unix', address: '/run/x.sock', port: null }, tcp('0.0.0.0', 8123)] }),
      process(3, 2, { listening: [tcp('0.0.0.0', 8123), tcp('::1', 80)] }),
    ],
  };
  assert.deepEqual(processes.ports(graph).map(({ label, pid }) => `${label} ${pid}`), ['[::1]:80 3', '*:8123 2', '/run/x.sock 2']);
});

test('what a process waits for', () => {
  const reading = process(4, 1, { fds: [{ fd: 0, target: '/dev/pts/3' }], threads: [{ waits_on: [0] }], wait_channel: 'wait_woken' });
  assert.equal(processes.doing(reading, '/dev/pts/3'), 'reading the terminal');
  assert.equal(processes.doing(process(4, 1, { wait_channel: 'hrtimer_nanosleep' }), ''), 'sleeping');
  assert.equal(processes.doing(process(4, 1, { wait_channel: 'do_wait' }), ''), 'waiting for a child');
  assert.equal(processes.doing(process(4, 1, { state: 'R' }), ''), 'running');
  assert.equal(processes.doing(process(4, 1, { wait_channel: 'something_new' }), ''), 'waiting');
});

test('command lines and beginnings', () => {
  assert.equal(processes.commandOf(process(3, 1)), '/bin/p3 x');
  assert.equal(processes.commandOf(process(3, 1), { short: true }), 'p3 x');
  assert.equal(processes.commandOf({ command: [], name: 'kworker' }), '[kworker]');
  assert.equal(processes.begun(process(3, 1), { boot: 1000 }), 1003);
  assert.ok(Number.isNaN(processes.begun(process(3, 1), {})));
});

// The timeline

test('keys in a row are one line, and everything has its actor', () => {
  const records = [
    { time: 100, kind: 'join', actor: 'ana', client: 'c1', modality: 'browser', mode: 'write' },
    { time: 101, kind: 'input', actor: 'ana', client: 'c1', modality: 'browser', bytes: 1, order: 1 },
    { time: 102, kind: 'input', actor: 'ana', client: 'c1', modality: 'browser', bytes: 4, order: 2 },
    { time: 103, kind: 'input', actor: 'bot', client: null, modality: 'mcp', bytes: 9, order: 3 },
    { time: 104, kind: 'input', actor: 'ana', client: 'c1', modality: 'browser', bytes: 1, order: 4 },
    { time: 300, kind: 'input', actor: 'ana', client: 'c1', modality: 'browser', bytes: 1, order: 5 },
    { time: 301, kind: 'exec', actor: 'bot', modality: 'mcp', command: 'make\u202E' },
    { time: 302, kind: 'leave', client: 'c1' },
    { time: 303, kind: 'moved', from: 1, to: 2 },
    { time: 304, kind: 'weather' },
    { time: 304.1, kind: 'job', job: 'j1', actor: 'ci', modality: 'http', command: 'make test' },
    { time: 304.2, kind: 'job_ended', job: 'j1', actor: 'ci', modality: 'http', code: 2, signal: null, error: null },
    { time: 305, kind: 'ended', code: 3, signal: null },
  ];
  assert.deepEqual(entries(records).map(({ actor, text, code }) => [actor, text, code].filter(Boolean).join(' ')), [
    'ended (3)', 'ci ’s job ended: exit 2 make test', 'ci started a job make test', 'weather', 'moved to another node (epoch 1 → 2)', 'ana left', 'bot ran make', 'ana typed 1 byte',
    'ana typed 1 byte', 'bot typed 9 bytes', 'ana typed 5 bytes', 'ana attached',
  ]);
});

test('times of today, and of other days', () => {
  const now = new Date(2026, 4, 3, 12).getTime();
  assert.match(clock(now / 1000 - 60, { now }), /^11:59:00$/);
  assert.match(clock(now / 1000 - 86400, { now, exact: false }), /2.* 12:00$/);
});

// The list

const entry = (session, more = {}) => ({ session, namespace: 'team', state: { activity: 'running', sentence: 'make is running.' }, ...more });

test('the filter looks at everything that is shown, word by word', () => {
  const found = entry('build', { clients: [{ actor: 'ana' }], node: 'node-b', command: ['bash', '-l'] });
  for (const words of ['', 'build', 'TEAM build', 'ana', 'node-b run', 'make', 'bash']) assert.ok(matches(found, words), words);
  for (const words of ['bo', 'build absent']) assert.ok(!matches(found, words), words);
});

test('grouped by namespace, in order', () => {
  const all = [entry('z'), entry('a'), entry('q', { namespace: 'data' }), entry('x', { namespace: undefined })];
  assert.deepEqual(grouped(all).map(([name, found]) => [name, ...found.map(({ session }) => session)].join(' ')), [' x', 'data q', 'team a z']);
});

// Tokens

const jwt = (claims) => `e30.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.c2ln`;

test('what is seen to be wrong with a token before it is sent', () => {
  const now = 1e12;
  const check = (token) => problem(token, now, 'holdfast')?.message ?? null;
  assert.equal(check(jwt({ sub: 'ana', exp: now / 1000 + 60 })), null);
  assert.equal(check('opaque-token'), null);
  assert.match(check(''), /no token/);
  assert.match(check(jwt({ exp: now / 1000 - 1 })), /expired/);
  for (const bad of ['ä', 'a b', 'a,b', 'a/b', 'x'.repeat(20000)]) assert.match(check(bad), /not a token/, bad.slice(0, 9));
  assert.match(problem('', now, 'holdfast').advice, /holdfast/);
});

test('whose a token is, as far as it says', () => {
  assert.deepEqual(holder(jwt({ sub: 'ana', exp: 5 })), { name: 'ana', until: 5000 });
  assert.deepEqual(holder(jwt({ sub: 'x', email: 'é@y' })), { name: 'é@y', until: null });
  for (const none of ['', 'a.b.c', 'e30.bnVsbA.x']) assert.deepEqual(holder(none), { name: '', until: null });
});
