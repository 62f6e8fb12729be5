// The page's small pure parts: keys, words, widths.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { test } from 'node:test';

import { keySequence, withModifiers } from '../../../gateway/holdfast_gateway/web/touch.js';
import { age, harmless } from '../../../gateway/holdfast_gateway/web/dom.js';
import { ending, endingSentence } from '../../../gateway/holdfast_gateway/web/states.js';
import { provider, width } from '../../../gateway/holdfast_gateway/web/widths.js';

const require = createRequire(new URL('../../../gateway/package.json', import.meta.url));
const { Terminal } = require('@xterm/headless');

test('arrows follow the cursor-key mode, and carry modifiers', () => {
  assert.equal(keySequence('up'), '\x1b[A');
  assert.equal(keySequence('up', { application: true }), '\x1bOA');
  assert.equal(keySequence('left', { ctrl: true, application: true }), '\x1b[1;5D');
  assert.equal(keySequence('right', { alt: true }), '\x1b[1;3C');
  assert.equal(keySequence('pageup'), '\x1b[5~');
  assert.equal(keySequence('pagedown', { ctrl: true }), '\x1b[6;5~');
});

test('plain keys of the row', () => {
  assert.equal(keySequence('escape'), '\x1b');
  assert.equal(keySequence('tab'), '\t');
  assert.equal(keySequence('|'), '|');
  assert.equal(keySequence('/', { ctrl: true }), '\x1f');
});

test('Ctrl and Alt on typed letters', () => {
  assert.equal(withModifiers('c', { ctrl: true }), '\x03');
  assert.equal(withModifiers('C', { ctrl: true }), '\x03');
  assert.equal(withModifiers('[', { ctrl: true }), '\x1b');
  assert.equal(withModifiers(' ', { ctrl: true }), '\0');
  assert.equal(withModifiers('x', { alt: true }), '\x1bx');
  assert.equal(withModifiers('x', { ctrl: true, alt: true }), '\x1b\x18');
  assert.equal(withModifiers('pasted text', { ctrl: true }), 'pasted text');
  assert.equal(withModifiers('é', { ctrl: true }), 'é');
});

test('how a session ended', () => {
  assert.equal(ending({ code: 3 }), 'ended (3)');
  assert.equal(ending({ code: null, signal: 9 }), 'ended (SIGKILL)');
  assert.equal(ending(null), 'ended');
  assert.equal(endingSentence({ code: 0 }), 'This session has ended.');
  assert.equal(endingSentence({ code: 3 }), 'This session ended with exit code 3.');
  assert.equal(endingSentence({ signal: 'SIGTERM' }), 'This session was ended by SIGTERM.');
});

test('titles from programs lose control and direction characters', () => {
  assert.equal(harmless('a\u202Eb\x1b[31mc\n'), 'a b [31mc');
  assert.equal(harmless('x'.repeat(500)).length, 120);
  assert.equal(harmless(null), '');
});

test('ages', () => {
  assert.deepEqual([5, 90, 7300, 200000].map(age), ['just now', '1 min', '2 h', '2 d']);
  assert.equal(age(NaN), '');
});

test('widths', () => {
  const cases = { a: 1, é: 1, '\u0301': 0, 漢: 2, '😀': 2, '🫠': 2, '\u200d': 0, '─': 1, '\u{20000}': 2, '\u{E0100}': 0 };
  for (const [char, columns] of Object.entries(cases)) {
    assert.equal(width(char.codePointAt(0)), columns, JSON.stringify(char));
  }
});

test('xterm.js places characters by these widths', async () => {
  const terminal = new Terminal({ cols: 80, rows: 5, allowProposedApi: true });
  terminal.unicode.register(provider);
  terminal.unicode.activeVersion = provider.version;
  for (const [written, column] of [['e\u0301x', 2], ['漢字', 4], ['🫠!', 3], ['❤\ufe0f|', 2]]) {
    await new Promise((done) => terminal.write(`\x1b[2J\x1b[H${written}`, done));
    assert.equal(terminal.buffer.active.cursorX, column, JSON.stringify(written));
  }
});
