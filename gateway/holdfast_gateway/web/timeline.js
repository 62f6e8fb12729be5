// Who did what: the journal's records as lines for people. Pure.

import { harmless, shortName } from './dom.js';

// Keys follow each other; a pause longer than this begins a new line.
const PAUSE_SECONDS = 60;

const WORDS = {
  take: () => 'took the turn',
  ask: () => 'asked for the turn',
  release: ({ to }) => (to ? `gave the turn to ${shortName(to)}` : 'gave the turn away'),
  freeze: () => 'froze the session',
  thaw: () => 'let it go on',
  signal: ({ signal }) => `sent signal ${harmless(signal, 12)}`,
  end: () => 'ended the session',
  refused: () => 'tried to type, and may not',
};
const EVENTS = {
  moved: ({ from, to }) => `moved to another node${Number.isInteger(to) ? ` (epoch ${harmless(from, 9)} → ${to})` : ''}`,
  cut: ({ remote }) => `connection to ${harmless(remote, 60)} was cut`,
  woken: () => 'woken up',
  restored: () => 'restored from a checkpoint',
  forked: () => 'begun as a fork',
};

/** [{time, actor, modality, kind, text, code}], newest first. `actor` null: nobody's act. */
export function entries(records) {
  const known = new Map(); // client → {actor, modality}
  const jobs = new Map(); // id → its command line
  const found = [];
  for (const record of records) {
    const { kind, client } = record;
    if (kind === 'job') jobs.set(record.job, record.command ?? record.argv?.join(' '));
    if (kind === 'join') known.set(client, { actor: record.shown ?? record.actor, uid: record.uid, modality: record.modality });
    const own = record.actor === undefined ? known.get(client) : { actor: record.shown ?? record.actor, uid: record.uid };
    const who = { actor: own?.actor ?? null, uid: own?.uid ?? '', modality: record.modality ?? known.get(client)?.modality ?? '' };
    if (kind === 'input') addInput(found, record, who);
    else {
      const made = lineOf(record, jobs.get(record.job) ?? record.job);
      if (made) found.push({ time: record.time, kind, ...who, ...made });
    }
  }
  return found.filter(({ time }) => Number.isFinite(time)).sort((a, b) => b.time - a.time);
}

function addInput(found, { time, bytes, client }, who) {
  const last = found.at(-1);
  if (last?.kind === 'input' && last.client === client && last.actor === who.actor && last.uid === who.uid && time - last.until <= PAUSE_SECONDS) {
    last.bytes += bytes;
    last.until = time;
  } else {
    found.push({ time, until: time, kind: 'input', client, bytes, ...who });
  }
  found.at(-1).text = `typed ${amount(found.at(-1).bytes)}`;
}

function lineOf(record, job) {
  const { kind } = record;
  if (kind === 'join') return { text: record.mode === 'view' ? 'came to watch' : 'attached' };
  if (kind === 'leave') return { text: 'left' };
  if (kind === 'exec') return { text: 'ran', code: harmless(record.command, 300) };
  if (kind === 'ended') return { actor: null, text: record.signal ? `ended by signal ${record.signal}` : `ended (${record.code ?? '?'})` };
  if (/^job(_|$)/.test(kind)) return jobLine(record, harmless(job, 300));
  if (Object.hasOwn(WORDS, kind)) return { text: WORDS[kind](record) };
  if (Object.hasOwn(EVENTS, kind)) return { actor: null, text: EVENTS[kind](record) };
  return kind ? { text: harmless(kind, 40) } : null; // of a newer sidecar
}

function jobLine({ kind, code, signal, error }, job) {
  if (kind === 'job') return { text: 'started a job', code: job };
  if (kind === 'job_signal') return { text: `sent signal ${harmless(signal, 12)} to a job`, code: job };
  const how = error ? harmless(error, 120) : signal ? `signal ${harmless(signal, 12)}` : `exit ${harmless(code, 12)}`;
  return { text: `’s job ended: ${how}`, code: job };
}

const amount = (bytes) => (bytes === 1 ? '1 byte' : bytes < 10000 ? `${bytes} bytes` : `${Math.round(bytes / 1000)} kB`);

/** `14:05:33`, or with its day if that is not today. */
export function clock(seconds, { now = Date.now(), exact = true } = {}) {
  const when = new Date(seconds * 1000);
  const shown = { hour: '2-digit', minute: '2-digit', hour12: false, ...(exact ? { second: '2-digit' } : {}) };
  const time = when.toLocaleTimeString([], shown);
  const today = new Date(now).toDateString() === when.toDateString();
  return today ? time : `${when.toLocaleDateString([], { day: 'numeric', month: 'short' })} ${time}`;
}
