// Notes in `seen` whatever disturbs: a notice, a dimmed screen, another word than "live", however
// briefly, and each time the screen is drawn anew.
() => {
  globalThis.seen = [];
  const byId = (id) => document.getElementById(id);
  const look = () => {
    for (const id of ['notice', 'toast']) if (!byId(id).hidden) seen.push(id);
    const { state } = byId('connection').dataset;
    if (state !== 'connected') seen.push(state);
    if (byId('app').dataset.link === 'down') seen.push('dimmed');
  };
  const all = { subtree: true, childList: true, attributes: true };
  new MutationObserver(look).observe(document.body, all);
  const { terminal } = holdfast;
  const { reset } = terminal;
  terminal.reset = () => {
    seen.push('reset');
    reset.call(terminal);
  };
}
