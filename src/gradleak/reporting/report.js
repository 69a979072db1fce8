"use strict";
// What a reader may do beside reading: sort and filter tables, enlarge pictures. Everything stands on the page without it.
(() => {
  const make = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  // A table whose rest is folded away is one list: its parts are sorted and filtered together.
  const lists = [];
  for (const table of document.querySelectorAll("main table")) {
    if ("goesOn" in table.dataset && lists.length) lists.at(-1).push(table);
    else lists.push([table]);
  }
  const rowsOf = (list) => list.flatMap((table) => [...table.tBodies[0].rows]);

  // A number by its exact value, words by themselves; what has no value comes last either way.
  const keyOf = (row, place) => {
    const cell = row.cells[place], number = cell.querySelector("data"), text = cell.textContent.trim();
    if (number) return Number(number.value.replace("inf", "Infinity"));
    if (!text || text === "–" || cell.querySelector(".absent")) return null;
    const plain = text.replaceAll(",", "");
    return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : text;
  };
  const compare = (one, two) =>
    typeof one === "number" && typeof two === "number"
      ? one - two
      : String(one).localeCompare(String(two), "en", { numeric: true });

  const sortable = (list) => {
    const first = rowsOf(list);
    list.forEach((table) => [...table.tHead.rows[0].cells].forEach((head, place) => {
      const button = make("button", { type: "button", class: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: "none" }[head.ariaSort] ?? "ascending";
        const turn = next === "descending" ? -1 : 1;
        const keys = new Map(first.map((row) => [row, keyOf(row, place)]));
        const sorted = next === "none" ? first : [...first].sort((one, two) => {
          const [a, b] = [keys.get(one), keys.get(two)];
          if (a === null || b === null) return (a === null) - (b === null);
          return turn * compare(a, b);
        });
        const sizes = list.map((table) => table.tBodies[0].rows.length);
        let from = 0;
        list.forEach((table, at) => {
          table.tBodies[0].append(...sorted.slice(from, from + sizes[at]));
          from += sizes[at];
          [...table.tHead.rows[0].cells].forEach((other, column) => {
            if (column === place && next !== "none") other.ariaSort = next;
            else other.removeAttribute("aria-sort");
          });
        });
      });
    }));
  };

  const filterable = (list) => {
    const rows = rowsOf(list);
    const chips = [...new Set(rows.flatMap((row) => [...row.querySelectorAll(".chip")].map((chip) => chip.textContent)))].sort();
    const words = make("input", { type: "search" }), verdict = make("select", {}), told = make("output", {});
    verdict.append(make("option", { value: "" }, "all"), ...chips.map((chip) => make("option", {}, chip)));
    const filter = make("div", { class: "filter" }, make("label", {}, "Rows with ", words));
    if (chips.length > 1) filter.append(make("label", {}, "Marked ", verdict));
    filter.append(told);
    list[0].closest(".scroll").before(filter);
    filter.addEventListener("input", () => {
      const asked = words.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        const marked = [...row.querySelectorAll(".chip")].some((chip) => chip.textContent === verdict.value);
        row.hidden = !row.textContent.toLowerCase().includes(asked) || (verdict.value !== "" && !marked);
        shown += !row.hidden;
      }
      const active = asked !== "" || verdict.value !== "";
      told.textContent = active ? `${shown} of ${rows.length} rows` : "";
      // What is found in a fold is shown.
      list.slice(1).forEach((table) => {
        if (active && [...table.tBodies[0].rows].some((row) => !row.hidden)) table.closest("details").open = true;
      });
    });
  };

  for (const list of lists) {
    const count = rowsOf(list).length;
    if (count > 1) sortable(list);
    if (count >= 8) filterable(list);
  }

  const box = make("dialog", { class: "zoomed", "aria-label": "Enlarged picture" });
  const close = make("button", { type: "button" }, "Close");
  const place = make("div", { tabindex: "0" });
  box.append(close, place);
  let back = () => {};
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => back());
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  document.body.append(box);
  for (const figure of document.querySelectorAll("figure")) {
    const picture = figure.querySelector("img, svg");
    if (!picture) continue;
    const name = picture.alt || picture.querySelector("title")?.textContent || "picture";
    const button = make("button", { type: "button", class: "enlarge", title: "Enlarge", "aria-label": `Enlarge: ${name}` }, "⤢");
    figure.prepend(button);
    button.addEventListener("click", () => {
      // A drawing is moved, not copied: its parts are known by their ids.
      const mark = make("span", {});
      picture.replaceWith(mark);
      place.replaceChildren(picture);
      back = () => mark.replaceWith(picture);
      box.showModal();
    });
  }
})();
