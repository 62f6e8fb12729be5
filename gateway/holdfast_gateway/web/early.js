// Before the first paint, so that the page does not flash in the wrong colours.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem('holdfast.theme');
  } catch {
    // Storage is forbidden here; follow the system.
  }
  if (chosen !== 'dark' && chosen !== 'light') {
    chosen = matchMedia('(prefers-color-scheme: light)').matches ? 'light' : 'dark';
  }
  document.documentElement.dataset.theme = chosen;
}
