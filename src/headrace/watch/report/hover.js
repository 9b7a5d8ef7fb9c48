// Shows the values under the pointer. Without it the page is the same, but for that.
for (const figure of document.querySelectorAll("[data-view]")) {
  const view = JSON.parse(figure.dataset.view), box = figure.querySelector(".box");
  const make = (name) => Object.assign(document.createElement("div"), { className: name, hidden: true });
  const cross = box.appendChild(make("cross")), tip = box.appendChild(make("tip"));
  const near = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) xs[(low + high) >> 1] > x ? (high = (low + high) >> 1) : (low = (low + high) >> 1);
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  const text = (value) => (value === null ? "NaN" : Number(value.toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 }));
  box.parentElement.addEventListener("pointermove", (event) => {
    const room = box.getBoundingClientRect(), [low, high] = view.x;
    const share = Math.min(1, Math.max(0, (event.clientX - room.left) / room.width));
    const longest = view.curves.reduce((a, b) => (b.x.length > a.x.length ? b : a)).x;
    const x = longest[near(longest, low + share * (high - low))], at = (x - low) / (high - low);
    tip.replaceChildren(`${view.axis} ${x.toLocaleString("en")}`);
    for (const curve of view.curves) {
      const k = near(curve.x, x);
      if (curve.x[k] !== x && curve.x.length < 2) continue;
      const line = tip.appendChild(document.createElement("span"));
      line.className = curve.c;
      line.textContent = `${curve.n} ${text(curve.y[k])}`;
    }
    cross.hidden = tip.hidden = false;
    cross.style.left = `${100 * at}%`;
    const above = event.clientY > room.top + room.height / 2; // Not where the pointer is
    tip.style.top = above ? "0.2rem" : "auto";
    tip.style.bottom = above ? "auto" : "0.2rem";
    tip.style.left = at < 0.5 ? `calc(${100 * at}% + 0.5rem)` : "auto";
    tip.style.right = at < 0.5 ? "auto" : `calc(${100 - 100 * at}% + 0.5rem)`;
  });
  box.parentElement.addEventListener("pointerleave", () => (cross.hidden = tip.hidden = true));
}
