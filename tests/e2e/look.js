// Opens all folds of a page, then measures. Contrast is that of WCAG 2 (1.4.3), from computed styles.
(() => {
  const linear = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const rgba = text => {
    const n = (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1];
  };
  const over = (top, low) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * low[i]).concat(1);
  const backdrop = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const own = rgba(getComputedStyle(e).backgroundColor);
      if (own[3] > 0) layers.push(own);
      if (own[3] === 1) break;
    }
    return layers.reverse().reduce((low, top) => over(top, low), [255, 255, 255, 1]);
  };
  const scrolls = [];
  const overflow = how => {
    const page = document.documentElement;
    if (page.scrollWidth > page.clientWidth) scrolls.push(`${how}: the page needs ${page.scrollWidth} px`);
    for (const e of document.querySelectorAll("body *")) {
      const own = e.getBoundingClientRect();
      if (own.width && own.height && (own.right > innerWidth + 1 || own.left < -1) && !e.closest("svg"))
        scrolls.push(`${how}: <${e.tagName.toLowerCase()} class="${e.className}"> ${e.textContent.slice(0, 40)}`);
      if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible" && !e.closest("svg"))
        scrolls.push(`${how}: <${e.tagName.toLowerCase()}> has a bar of its own`);
    }
  };
  overflow("folded");
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  overflow("unfolded");
  const faint = [], small = [], cut = [], crossed = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const words = node.textContent.trim(), e = node.parentElement;
    if (!words || ["STYLE", "SCRIPT", "title"].includes(e.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const style = getComputedStyle(e), svg = e.closest("svg");
    const low = backdrop(svg ? svg.parentElement : e);
    const ink = over(rgba(svg ? style.fill : style.color), low);
    const [a, b] = [light(ink), light(low)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)}: ${words.slice(0, 60)}`);
    if (size < 9) small.push(`${size.toFixed(1)} px: ${words.slice(0, 60)}`);
    if (svg) {
      const frame = svg.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
        cut.push(words.slice(0, 60));
    }
  }
  for (const svg of document.querySelectorAll("figure svg")) {
    const boxes = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
    boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 0.35 * Math.min(a.height, b.height)) crossed.push(`${one} and ${other}`);
    }));
  }
  return { scrolls, faint, small, cut, crossed, paper: backdrop(document.body).slice(0, 3), text: document.body.innerText };
})()
