/* collectives.js - the collectives of all ranks: totals of each kind, and groups whose ranks launched different
 * ones. */

function showCollectiveTotals(totals) {
  const body = find("collective-totals").tBodies[0];
  for (const [kind, count, bytes, seconds, each] of totals) {
    const time = seconds === null ? "" : duration(seconds);
    const row = make("tr", "", make("td", "", kind), make("td", "figure", count.toLocaleString("en")));
    row.append(make("td", "figure", bytes ? size(bytes) : ""), make("td", "figure", time), make("td", "", each));
    Object.assign(row.dataset, { kind, count, bytes });
    body.append(row);
  }
}

/* A row for each part of a group whose ranks launched the same; a click on its ranks shows the first one of them. */
function showMismatches(mismatches, showRankOf) {
  const body = find("mismatch-rows").tBodies[0];
  for (const { group, parts, more } of mismatches) {
    parts.forEach(([ranks, first, launched, says], i) => {
      const button = makeButton("link", ranks);
      button.addEventListener("click", () => showRankOf(first));
      const row = make("tr", "", make("td", "", i ? "" : bdi(group)), make("td", "", button), make("td", "", launched));
      row.append(make("td", "", says));
      Object.assign(row.dataset, { group, ranks, launched });
      body.append(row);
    });
    if (more) body.append(make("tr", "", make("td"), make("td", "none", `and ${more.toLocaleString("en")} more`),
      make("td"), make("td")));
  }
}

function showCollectives({ title, totals, mismatches, why }, showRankOf) {
  find("job-collectives-title").textContent = title;
  find("job-collectives").hidden = !totals.length;
  find("mismatches").hidden = !mismatches.length;
  find("mismatches-why").textContent = why;
  showCollectiveTotals(totals);
  showMismatches(mismatches, showRankOf);
}
