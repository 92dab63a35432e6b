// What is wrong with the geometry of a page: texts that are cut, tables that are wider than their box without a hint, text on text.
({
  cut: () => {
    const clipped = (element) => element.scrollWidth > element.clientWidth + 1;
    const page = document.documentElement;
    const found = clipped(page) ? [`the page: ${page.scrollWidth} > ${page.clientWidth}`] : [];
    for (const box of document.querySelectorAll(".scroll")) {
      if (clipped(box) && !box.classList.contains("wide")) found.push(`unmarked table ${box.dataset.name}`);
    }
    for (const element of document.querySelectorAll("dd, dt, h1, h2, h3, p, figcaption, li, button, label")) {
      if (element.clientWidth && clipped(element)) found.push(`cut: ${element.textContent.slice(0, 60)}`);
    }
    for (const svg of document.querySelectorAll(".plot svg")) {
      const frame = svg.getBoundingClientRect();
      for (const text of svg.querySelectorAll("text")) {
        const box = text.getBoundingClientRect();
        const out = box.width && (box.left < frame.left - 2 || box.right > frame.right + 2);
        if (out && getComputedStyle(text).opacity > 0) found.push(`outside its chart: ${text.textContent}`);
      }
    }
    return found;
  },
  overlapping: () => {
    const seen = (element) => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
    const boxes = (root, selector) => [...root.querySelectorAll(selector)].filter((e) => e.textContent.trim() && seen(e)).map((e) => [e, e.getBoundingClientRect()])
      .filter(([, box]) => box.width && box.height);
    const crossing = (pairs, slack) => {
      const found = [];
      pairs.forEach(([one, a], place) => {
        for (const [other, b] of pairs.slice(place + 1)) {
          if (one.contains(other) || other.contains(one)) continue;
          const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
          if (wide > slack && high > slack) found.push(`${one.textContent.slice(0, 40)} × ${other.textContent.slice(0, 40)}`);
        }
      });
      return found;
    };
    const found = [...document.querySelectorAll(".plot svg")].flatMap((svg) => crossing(boxes(svg, "text"), 3));
    return [...found, ...crossing(boxes(document, "h1, h2, h3, main p, dd, dt, figcaption, .plot, li"), 1)];
  },
  faults: async () => {
    const {violations} = await axe.run(document, {resultTypes: ["violations"]});
    const serious = violations.filter((fault) => ["serious", "critical"].includes(fault.impact));
    return serious.map((fault) => `${fault.id}: ${fault.nodes.map((node) => node.html.slice(0, 120)).slice(0, 3).join(" ")}`);
  },
  drawn: () => [...document.querySelectorAll(".plot")].every((plot) => !plot.clientWidth || plot.querySelector("svg")),
  settled: () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
})
