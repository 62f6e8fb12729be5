// Text that is seen, and has less contrast to what is behind it than 4.5 (WCAG AA).
() => {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const over = (colors) => {
    paint.clearRect(0, 0, 1, 1);
    for (const color of colors) {
      paint.fillStyle = color;
      paint.fillRect(0, 0, 1, 1);
    }
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  const shown = { opacityProperty: true, visibilityProperty: true };
  const root = document.querySelector('dialog[open]') ?? document.body;
  for (const e of root.querySelectorAll('*')) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text || e.closest('.xterm, svg, script, noscript, :disabled')) continue;
    if (!e.checkVisibility(shown)) continue;
    const grounds = [];
    for (let p = e; p; p = p.parentElement) grounds.unshift(getComputedStyle(p).backgroundColor);
    const back = light(over(grounds));
    const ink = light(over([...grounds, getComputedStyle(e).color]));
    const ratio = (Math.max(back, ink) + 0.05) / (Math.min(back, ink) + 0.05);
    const words = e.textContent.trim().slice(0, 30);
    if (ratio < 4.5) faint.push(`${e.className || e.tagName} ${words}: ${ratio.toFixed(2)}`);
  }
  return faint;
}
