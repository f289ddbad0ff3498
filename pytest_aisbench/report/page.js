"use strict";
// pytest-html draws its table anew whenever it is sorted. What is open, and what is searched for, is kept here.
(() => {
  const all = (selector, at = document) => [...at.querySelectorAll(selector)];
  const one = (selector, at = document) => at.querySelector(selector);
  const scripts = Object.fromEntries(all("script.aisbench-details").map((each) => [each.dataset.case, each]));
  const sample = one("script.aisbench-sample");
  const opened = new Set();  // rows, by pytest-html's number of them
  const chosen = { words: "", verdict: "" };

  // Details of many cases are packed by deflate, with the details of one of them as a sample of what they have in
  // common. The browser has no call for a sample: it reads it as a block that was stored before the packed ones.
  const details = async (number) => {
    const script = scripts[number];
    if (!script) return "";
    if (script.type === "text/html") return script.text;
    const words = new TextEncoder().encode(sample.text).slice(-32768);
    const size = words.length;
    const stored = new Uint8Array([0, size & 255, size >> 8, ~size & 255, (~size >> 8) & 255]);
    const packed = Uint8Array.from(atob(script.text), (each) => each.charCodeAt(0));
    const stream = new Blob([stored, words, packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    const bytes = await new Response(stream).arrayBuffer();
    return new TextDecoder().decode(new Uint8Array(bytes, size));
  };

  const draw = (room) => {
    for (const curve of all("path[data-d]", room)) {
      const steps = curve.dataset.d.split(" ");
      let y = 0;
      const point = (step, index) => `${(64 + 612 * index / (steps.length - 1)).toFixed(1)} ${((y += +step) / 10).toFixed(1)}`;
      curve.setAttribute("d", `M${steps.map(point).join("L")}`);
    }
  };

  const rows = () => all("#results-table > tbody.results-table-row").filter((body) => one("tr.collapsible", body));
  const idOf = (body) => one("tr.collapsible", body).dataset.id;
  const caseOf = (body) => one("[data-case]", body)?.dataset.case;

  const show = async (body) => {
    const isOpen = opened.has(idOf(body));
    one(".extras-row", body).classList.toggle("hidden", !isOpen);
    one(".col-testId button", body)?.setAttribute("aria-expanded", isOpen);
    const room = one(".extraHTML", body);
    if (isOpen && caseOf(body) !== undefined && !one(".aisbench", room)) {
      const html = await details(caseOf(body));
      if (one(".aisbench", room)) return;
      room.insertAdjacentHTML("afterbegin", html);
      draw(room);
    }
  };

  const toggle = (body, isOpen = !opened.has(idOf(body))) => {
    if (isOpen) opened.add(idOf(body));
    else opened.delete(idOf(body));
    return show(body);
  };

  const filter = () => {
    let matches = 0;
    for (const body of rows()) {
      const row = one("tr.collapsible", body);
      const isOf = !chosen.verdict || one("[data-verdict]", row)?.dataset.verdict === chosen.verdict;
      const fits = isOf && chosen.words.split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word));
      body.classList.toggle("filtered", !fits);
      matches += fits;
    }
    const none = one("#aisbench-none");
    if (none) none.hidden = matches > 0;
  };

  const redraw = () => {
    filter();
    rows().forEach(show);
  };

  // Before pytest-html's own listeners: those draw all rows anew to open one.
  document.addEventListener("click", (event) => {
    const whole = event.target.closest("#show_all_details, #hide_all_details");
    if (whole) {
      event.stopPropagation();
      openAll(whole.id === "show_all_details");
      return;
    }
    const cell = event.target.closest("#results-table tr.collapsible > td");
    if (!cell || event.target.closest("a")) return;
    event.stopPropagation();
    toggle(cell.closest("tbody"));
  }, true);

  one("#aisbench-search")?.addEventListener("input", (event) => {
    chosen.words = event.target.value.trim().toLowerCase();
    filter();
  });
  for (const chip of all("#aisbench-verdicts button"))
    chip.addEventListener("click", () => {
      chosen.verdict = chip.dataset.of;
      for (const each of all("#aisbench-verdicts button")) each.setAttribute("aria-pressed", each === chip);
      filter();
    });
  const visible = () => rows().filter((body) => !body.classList.contains("filtered"));
  const openAll = (isOpen) => Promise.all(visible().map((body) => toggle(body, isOpen)));
  one("#aisbench-open")?.addEventListener("click", () => openAll(true));
  one("#aisbench-close")?.addEventListener("click", () => openAll(false));
  one("#aisbench-print")?.addEventListener("click", () => print());
  one("#aisbench-print-all")?.addEventListener("click", async () => {
    await Promise.all(rows().map((body) => toggle(body, true)));
    document.body.classList.add("appendix");
    print();
  });
  addEventListener("afterprint", () => document.body.classList.remove("appendix"));

  const goTo = async () => {
    const number = /^#case-(\d+)$/.exec(location.hash)?.[1];
    const body = number && rows().find((each) => caseOf(each) === number);
    if (!body) return;
    body.classList.remove("filtered");
    await toggle(body, true);
    body.scrollIntoView();
  };
  addEventListener("hashchange", goTo);
  document.addEventListener("click", (event) => {
    if (event.target.closest(`a[href="${location.hash}"]`)) goTo();
  });

  // The value of a curve under the pointer.
  const hint = document.body.appendChild(Object.assign(document.createElement("div"), { id: "aisbench-hint" }));
  document.addEventListener("pointermove", (event) => {
    const picture = event.target.closest?.(".aisbench svg");
    const curve = picture && one("path[data-y]", picture);
    if (!curve) {
      hint.textContent = "";
      return;
    }
    const [low, high, at, to] = curve.dataset.y.split(" ").map(Number);
    const points = curve.getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number));
    const x = (event.clientX - picture.getBoundingClientRect().left) * 760 / picture.getBoundingClientRect().width;
    const near = points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
    const value = low + (at - near[1]) / (at - to) * (high - low);
    hint.textContent = `${points.indexOf(near) + 1} / ${points.length}: ${Number(value.toPrecision(4))}`;
    hint.style.left = `${Math.min(event.clientX + 12, innerWidth - 160)}px`;
    hint.style.top = `${event.clientY + 14}px`;
  });

  if (document.body.classList.contains("page")) {
    one("#environment").classList.add("hidden");
    one("#environment-header").classList.add("collapsed");
  }
  for (const body of rows()) if (!one(".extras-row", body).classList.contains("hidden")) opened.add(idOf(body));
  redraw();
  new MutationObserver(redraw).observe(document.body, { childList: true });
  goTo();
})();
