// The page's frames against tests/wire/golden.json, the file the Python side is held to as well.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { MAX_PAYLOAD, decode, encode } from '../../../gateway/holdfast_gateway/web/wire.js';

const golden = JSON.parse(readFileSync(new URL('../../wire/golden.json', import.meta.url), 'utf8'));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, 'hex'));
const hex = (data) => Buffer.from(data).toString('hex');

// A case of golden.json as the frame that wire.js speaks of.
function frameOf({ name, hex: _, ...fields }) {
  for (const field of ['data', 'key']) {
    if (field in fields) fields[field] = bytes(fields[field]);
  }
  return fields;
}

// Byte arrays compare by content and not by the buffer they are a view of.
const plain = (frame) =>
  Object.fromEntries(
    Object.entries(frame).map(([k, v]) => [k, v instanceof Uint8Array ? hex(v) : v]),
  );

for (const item of golden.frames) {
  test(`${item.frame}: ${item.name}: encodes`, () => {
    assert.equal(hex(encode(frameOf(item))), item.hex);
  });
  test(`${item.frame}: ${item.name}: decodes`, () => {
    const found = [...decode(bytes(item.hex))];
    assert.deepEqual(found.map(plain), [plain(frameOf(item))]);
  });
}

for (const item of golden.refused) {
  test(`refused: ${item.name}`, () => {
    assert.throws(() => [...decode(bytes(item.hex))], { code: item.code });
  });
}

test('a message may hold several frames', () => {
  const message = bytes(golden.frames.map((item) => item.hex).join(''));
  const found = [...decode(message)].map(plain);
  assert.deepEqual(found, golden.frames.map((item) => plain(frameOf(item))));
});

test('a message that ends inside a frame is refused', () => {
  const message = bytes(golden.frames[1].hex);
  for (const end of [3, 8, message.length - 1]) {
    assert.throws(() => [...decode(message.slice(0, end))], { code: 'bad_request' });
  }
});

test('a message in the middle of a larger buffer decodes', () => {
  const item = golden.frames.find(({ frame }) => frame === 'output');
  const framed = bytes(`ffff${item.hex}ffff`);
  const [found] = decode(framed.subarray(2, framed.length - 2));
  assert.deepEqual(plain(found), plain(frameOf(item)));
});

test('a number past 2^53 is refused, not rounded', () => {
  const gap = bytes('010400000000001000200000000000000020000000000001');
  assert.throws(() => [...decode(gap)], { code: 'bad_request' });
});

test('a frame over the limit is not made', () => {
  const data = new Uint8Array(MAX_PAYLOAD);
  assert.throws(() => encode({ frame: 'output', seq: 0, data }), { code: 'too_large' });
});
