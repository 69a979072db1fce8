"use strict";
// Keeps the list of runs up to date: how far each is every few seconds, and the whole page where a run begins or ends.
(() => {
  const said = document.querySelector(".live");
  const rows = [...document.querySelectorAll("tr[data-run]")], choices = [...document.querySelectorAll("input[type=radio]")];
  // A page that is loaded anew keeps what was chosen.
  const chosen = JSON.parse(sessionStorage.getItem("chosen") ?? "[]");
  choices.forEach((one) => { one.checked = chosen.includes(`${one.name} ${one.value}`); });
  sessionStorage.removeItem("chosen");
  const renew = () => {
    const names = choices.filter((one) => one.checked).map((one) => `${one.name} ${one.value}`);
    sessionStorage.setItem("chosen", JSON.stringify(names));
    location.reload();
  };
  const show = (runs) => {
    const known = new Map(rows.map((row) => [row.dataset.run, row]));
    if (runs.length !== known.size || runs.some((run) => known.get(run.name)?.dataset.state !== run.state)) return renew();
    for (const run of runs) {
      const row = known.get(run.name), bar = row.querySelector("progress"), words = row.querySelector(".told");
      if (bar) [bar.value, bar.max] = [run.done, run.of];
      if (words.textContent !== run.told) words.textContent = run.told;
    }
  };
  const ask = async () => {
    try {
      const answer = await fetch("runs.json", { cache: "no-store" });
      show((await answer.json()).runs);
      said.textContent = "";
    } catch {
      said.textContent = "gradleak view has ended: what stands here is as it was.";
    }
    setTimeout(ask, document.hidden ? 10000 : 2000);
  };
  setTimeout(ask, 2000);
})();
