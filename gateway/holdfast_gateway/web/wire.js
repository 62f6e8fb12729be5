// Frames, as in docs/protocol.md and holdfast_wire/frames.py. No I/O.
//
//   u8 version (1) | u8 type | u16 reserved (0) | u32 payload length | payload
//
// tests/wire/golden.json holds this file and the Python one to the same bytes. Positions are plain
// numbers: 2^53 bytes of output are more than a page will ever see, and a larger one is refused.

export const VERSION = 1;
export const HEADER = 8;
export const MAX_PAYLOAD = 1 << 20;
// The gateway's limit for one frame from a page. Longer input goes in parts.
export const MAX_INPUT = 1 << 17;

export const Type = Object.freeze({
  attach: 1, snapshot: 2, output: 3, gap: 4, input: 5, ack: 6, resize: 7, control: 8, error: 9,
});
export const Part = Object.freeze({ first: 1, last: 2 });

const NAMES = Object.fromEntries(Object.entries(Type).map(([name, type]) => [type, name]));
const toBytes = new TextEncoder();
const toText = new TextDecoder('utf-8', { fatal: true });

export class WireError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const malformed = (message) => new WireError('bad_request', message);

// Keys sorted, so that a frame has one encoding.
function sorted(key, value) {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, value[name]]));
}

const jsonOut = (body) => toBytes.encode(JSON.stringify(body, sorted));

function jsonIn(bytes) {
  let body;
  try {
    body = JSON.parse(toText.decode(bytes));
  } catch {
    throw malformed("a frame's JSON cannot be read");
  }
  if (body === null || typeof body !== 'object' || Array.isArray(body)) {
    throw malformed("a frame's JSON is not an object");
  }
  return body;
}

// A frame of `size` fixed bytes and then `tail`; `fill` writes the fixed ones.
function build(type, size, fill, tail = new Uint8Array(0)) {
  const length = size + tail.length;
  if (length > MAX_PAYLOAD) throw new WireError('too_large', `a frame of ${length} bytes`);
  const bytes = new Uint8Array(HEADER + length);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, VERSION);
  view.setUint8(1, type);
  view.setUint32(4, length);
  fill(new DataView(bytes.buffer, HEADER));
  bytes.set(tail, HEADER + size);
  return bytes;
}

const putU64 = (view, at, value) => view.setBigUint64(at, BigInt(value));

function getU64(view, at) {
  const value = view.getBigUint64(at);
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw malformed('a number too large for this page');
  return Number(value);
}

const nothing = () => {};

const ENCODE = {
  attach: (f) => build(Type.attach, 0, nothing, jsonOut(f.body)),
  control: (f) => build(Type.control, 0, nothing, jsonOut(f.body)),
  snapshot: (f) => build(Type.snapshot, 13, (view) => {
    putU64(view, 0, f.seq);
    view.setUint16(8, f.columns);
    view.setUint16(10, f.rows);
    view.setUint8(12, f.part);
  }, f.data),
  output: (f) => build(Type.output, 8, (view) => putU64(view, 0, f.seq), f.data),
  gap: (f) => build(Type.gap, 16, (view) => {
    putU64(view, 0, f.start);
    putU64(view, 8, f.end);
  }),
  input: (f) => {
    if (f.key.length > 255) throw new WireError('too_large', 'an idempotency key over 255 bytes');
    const tail = new Uint8Array(f.key.length + f.data.length);
    tail.set(f.key);
    tail.set(f.data, f.key.length);
    return build(Type.input, 9, (view) => {
      putU64(view, 0, f.number);
      view.setUint8(8, f.key.length);
    }, tail);
  },
  ack: (f) => build(Type.ack, 17, (view) => {
    putU64(view, 0, f.number);
    putU64(view, 8, f.order);
    view.setUint8(16, f.status);
  }),
  resize: (f) => build(Type.resize, 12, (view) => {
    putU64(view, 0, f.seq);
    view.setUint16(8, f.columns);
    view.setUint16(10, f.rows);
  }),
  error: (f) => build(Type.error, 8, (view) => putU64(view, 0, f.ref), jsonOut(f.body)),
};

const DECODE = {
  attach: (view, bytes) => ({ body: jsonIn(bytes) }),
  control: (view, bytes) => ({ body: jsonIn(bytes) }),
  snapshot: (view, bytes) => {
    const part = view.getUint8(12);
    if (part > (Part.first | Part.last)) throw malformed("a snapshot's part is unknown");
    const [columns, rows] = [view.getUint16(8), view.getUint16(10)];
    return { seq: getU64(view, 0), columns, rows, part, data: bytes.subarray(13) };
  },
  output: (view, bytes) => ({ seq: getU64(view, 0), data: bytes.subarray(8) }),
  gap: (view) => ({ ...exactly(view, 16), start: getU64(view, 0), end: getU64(view, 8) }),
  input: (view, bytes) => {
    const end = 9 + view.getUint8(8);
    if (end > bytes.length) throw malformed("an input's key is longer than its frame");
    return { number: getU64(view, 0), key: bytes.subarray(9, end), data: bytes.subarray(end) };
  },
  ack: (view) => {
    exactly(view, 17);
    const status = view.getUint8(16);
    if (status > 1) throw malformed("an ack's status is unknown");
    return { number: getU64(view, 0), order: getU64(view, 8), status };
  },
  resize: (view) => {
    exactly(view, 12);
    return { seq: getU64(view, 0), columns: view.getUint16(8), rows: view.getUint16(10) };
  },
  error: (view, bytes) => ({ ref: getU64(view, 0), body: jsonIn(bytes.subarray(8)) }),
};

function exactly(view, length) {
  if (view.byteLength !== length) throw malformed(`a payload of ${view.byteLength} bytes`);
  return {};
}

/** One frame, `{frame: 'output', seq, data}`, as bytes. */
export function encode(frame) {
  return ENCODE[frame.frame](frame);
}

/** The frames of one WebSocket message, which holds whole frames only. Their `data` are views of
 * the message, not copies. */
export function* decode(message) {
  const bytes = message instanceof Uint8Array ? message : new Uint8Array(message);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  while (at < bytes.length) {
    if (bytes.length - at < HEADER) throw malformed('half a header');
    const [version, type] = [view.getUint8(at), view.getUint8(at + 1)];
    const length = view.getUint32(at + 4);
    if (version !== VERSION) throw new WireError('unsupported', `frames of version ${version}`);
    if (view.getUint16(at + 2) !== 0) throw malformed("a frame's reserved bits are set");
    if (length > MAX_PAYLOAD) throw new WireError('too_large', `a frame of ${length} bytes`);
    const end = at + HEADER + length;
    if (end > bytes.length) throw malformed('half a frame');
    const name = NAMES[type];
    if (name === undefined) throw new WireError('unsupported', `frames of type ${type}`);
    yield { frame: name, ...payload(name, bytes.subarray(at + HEADER, end)) };
    at = end;
  }
}

function payload(name, bytes) {
  try {
    return DECODE[name](new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), bytes);
  } catch (error) {
    if (error instanceof RangeError) throw malformed(`a ${name} frame that is too short`);
    throw error;
  }
}
